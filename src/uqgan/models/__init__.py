"""Networks: classifiers, conditional autoencoders, generator and critic. Sizes come in as numbers."""
