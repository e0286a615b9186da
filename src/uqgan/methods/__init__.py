"""The rows of the paper's tables: a recipe times a reading each."""

from uqgan.methods import bayes, confident, cross_entropy, gen, one_vs_all, uqgan
from uqgan.methods.method import Method, Predictor
from uqgan.uncertainty import read_dirichlet, read_entropy, read_max_softmax, read_mutual_information, read_one_vs_all

__all__ = ["METHODS", "Method", "Predictor"]

METHODS = {
    #                         title                    trained by      read by
    "uqgan":          Method("UQGAN",                  uqgan,          read_one_vs_all),
    "uqgan-mc":       Method("UQGAN with MC-Dropout",  uqgan,          read_one_vs_all, dropout=0.5, passes=50),
    "one-vs-all":     Method("One-vs-All Baseline",    one_vs_all,     read_one_vs_all),
    "max-softmax":    Method("Max. Softmax",           cross_entropy,  read_max_softmax),
    "entropy":        Method("Entropy",                cross_entropy,  read_entropy),
    "bayes":          Method("Bayes-by-Backprop",      bayes,          read_mutual_information, passes=50),
    "mc-dropout":     Method("MC-Dropout",             cross_entropy,  read_entropy, dropout=0.5, passes=50,
                             settings="mc_dropout"),
    "ensemble":       Method("Deep-Ensembles",         cross_entropy,  read_entropy, members=5),
    "confident":      Method("Confident Classifier",   confident,      read_entropy),
    "gen-sensoy":     Method("GEN",                    gen,            read_dirichlet),
    "entropy-oracle": Method("Entropy Oracle",         cross_entropy,  read_entropy, sees_ood=True, settings="oracle"),
    "ova-oracle":     Method("One-vs-All Oracle",      one_vs_all,     read_one_vs_all, sees_ood=True,
                             settings="oracle"),
    # Beyond the paper.
    "uqgan-ensemble": Method("Ensemble of UQGANs",     uqgan,          read_one_vs_all, members=5),
}  # fmt: skip
