"""The rows of the paper's tables: a recipe times a reading each."""

from uqgan.methods import cross_entropy, one_vs_all, uqgan
from uqgan.methods.method import Method, Predictor
from uqgan.uncertainty import read_entropy, read_max_softmax, read_one_vs_all

__all__ = ["METHODS", "Method", "Predictor"]

METHODS = {
    #                         title                    trained by     read by
    "uqgan":       Method("UQGAN",                     uqgan,         read_one_vs_all),
    "uqgan-mc":    Method("UQGAN with MC-Dropout",     uqgan,         read_one_vs_all, dropout=0.5, passes=50),
    "one-vs-all":  Method("One-vs-All Baseline",       one_vs_all,    read_one_vs_all),
    "max-softmax": Method("Max. Softmax",              cross_entropy, read_max_softmax),
    "entropy":     Method("Entropy",                   cross_entropy, read_entropy),
}  # fmt: skip
