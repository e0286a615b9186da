"""Settings: one frozen model per recipe, parsed from YAML and dotted overrides; without PyTorch, for a quick help."""

import difflib
from collections.abc import Mapping
from functools import reduce
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from uqgan.errors import UsageError


class Settings(BaseModel):
    """Section of settings: frozen, keyword-only, without unknown keys; docstrings of fields are help texts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_true_and_false_as_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind in (int, float):
            raise PydanticKnownError("int_type" if kind is int else "float_type")
        return value


class AutoencoderConfig(Settings):
    kind: Literal["identity", "small", "resnet"] = "identity"
    """Network: identity (points), small (two convolutions each way), resnet (32 or 64 pixels)."""
    dim: int = Field(32, ge=1, le=4096)
    """Size of a latent code."""
    epochs: int = Field(200, ge=1)
    """Epochs of pre-training."""
    batch_size: int = Field(256, ge=2)
    """Samples per step."""
    lr: float = Field(1e-3, gt=0)
    """Adam's learning rate; a tenth of it after a quarter of the epochs, a hundredth after half of them."""


class Passes(Settings):
    epochs: int = Field(100, ge=1)
    """Epochs of training."""
    batch_size: int = Field(256, ge=2)
    """Samples per step."""


class SupervisedConfig(Passes):
    epochs: int = Field(200, ge=1)
    """Epochs of training."""
    lr: float = Field(1e-3, gt=0)
    """Adam's learning rate at the start."""
    end_lr: float = Field(1e-5, gt=0)
    """Learning rate at the end of the linear decay."""
    weight_decay: float = Field(2e-4, ge=0)
    """Adam's weight decay."""


class OracleConfig(SupervisedConfig):
    """Settings of the methods that train on outliers, which are half of each batch."""

    epochs: int = Field(100, ge=1)
    """Epochs of training."""
    lr: float = Field(2e-4, gt=0)
    """Adam's learning rate at the start."""


class BayesConfig(SupervisedConfig):
    kl_factor: float = Field(1.0, ge=0)
    """Factor of the KL divergence of the weights' distribution from its prior."""
    prior_share: float = Field(0.75, ge=0, le=1)
    """Share of the wide component in the prior, a mixture of two Gaussians with mean 0."""
    prior_wide: float = Field(0.1, gt=0)
    """Standard deviation of the prior's wide component."""
    prior_narrow: float = Field(5e-4, gt=0)
    """Standard deviation of the prior's narrow component."""


class ConfidentConfig(Passes):
    beta: float = Field(1.0, ge=0)
    """Weight of the divergence from the uniform distribution on generated samples."""
    lr: float = Field(2e-4, gt=0)
    """Adam's learning rate of all three networks; a tenth of it in the last 40 % of the epochs."""
    weight_decay: float = Field(2e-4, ge=0)
    """Adam's weight decay of the classifier."""
    noise: int = Field(100, ge=1, le=65_536)
    """Size of the generator's noise."""
    width: int = Field(1024, ge=16)
    """Channels of generator and discriminator at 4 × 4 pixels; half as many at twice the size, and so on."""


class GenConfig(Passes):
    dim: int = Field(50, ge=1, le=4096)
    """Size of a latent code of the variational autoencoder."""
    width: int = Field(256, ge=2)
    """Channels of the autoencoder's decoder after its first layer; half as many after the second."""
    autoencoder_steps: int = Field(10, ge=1)
    """Steps of the variational autoencoder per batch."""
    lr: float = Field(1e-3, gt=0)
    """The classifier's learning rate (Adam)."""
    weight_decay: float = Field(1e-3, ge=0)
    """The classifier's weight decay."""
    autoencoder_lr: float = Field(1e-3, gt=0)
    """The variational autoencoder's learning rate (Adam)."""
    gan_lr: float = Field(1e-4, gt=0)
    """Learning rate of the generator and of both discriminators (RMSprop)."""
    gan_weight_decay: float = Field(2e-4, ge=0)
    """Weight decay of both discriminators."""


class UqganConfig(Settings):
    iterations: int = Field(10_000, ge=1)
    """Generator steps; each comes with its critic and classifier steps."""
    batch_size: int = Field(256, ge=2)
    """Samples per step."""
    critic_steps: int = Field(5, ge=1)
    """Critic steps per iteration."""
    classifier_steps: int = Field(5, ge=1)
    """Classifier steps per iteration."""
    lambda_gp: float = Field(10.0, ge=0)
    """Weight of the gradient penalty."""
    lambda_cl: float = Field(2.0, ge=0)
    """Weight of the classifier in the generator's objective (Eq. 8)."""
    lambda_reg: float = Field(32.0, ge=0)
    """Weight of the regulariser."""
    regulariser: Literal["angle", "cosine", "l1", "l2", "linf"] = "angle"
    """Measure of the spread of generated codes: angles (Eqs. 10, 11), cosines, or logarithms of distances."""
    lambda_real: float = Field(0.6, ge=0, le=1)
    """Share of the out-of-class loss taken from real samples of other classes (Eq. 9)."""
    noise: int = Field(128, ge=1, le=65_536)
    """Size of the generator's noise."""
    generator_width: int = Field(1024, ge=4, le=65_536)
    """Units in the generator's first layer; half as many in its second, a quarter in its third."""
    decoded_real: float = Field(0.0, ge=0, le=1)
    """Share of the real samples that pass through the autoencoder, as generated ones do, before the classifier."""
    lr: float = Field(1e-3, gt=0)
    """The classifier's learning rate at the start."""
    end_lr: float = Field(1e-5, gt=0)
    """The classifier's learning rate at the end."""
    gan_lr: float = Field(2e-4, gt=0)
    """Learning rate of generator and critic at the start."""
    gan_end_lr: float = Field(1e-5, gt=0)
    """Learning rate of generator and critic at the end."""
    validate_every: int = Field(20, ge=1)
    """Iterations between validations."""


class Config(Settings):
    """All settings of a run; a method reads the sections of its recipe."""

    classifier: Literal["mlp", "lenet", "resnet", "custom"] = "mlp"
    """Network: mlp (points), lenet (32 pixels), resnet (32 or 64 pixels), custom (user-supplied, in Python)."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision of convolutional networks; auto: bf16 if the hardware has it (small autoencoders train in fp32)."""
    compile: Literal["auto", "always", "never"] = "auto"
    """Compile on CUDA, which takes a minute or more and makes iterations faster; auto: for ResNets."""
    fresh: bool = False
    """Train without weights from the cache, which earlier runs with the same settings, data and seed left there."""
    uqgan: UqganConfig = UqganConfig()
    autoencoder: AutoencoderConfig = AutoencoderConfig()
    one_vs_all: SupervisedConfig = SupervisedConfig()
    cross_entropy: SupervisedConfig = SupervisedConfig()
    mc_dropout: SupervisedConfig = SupervisedConfig()
    bayes: BayesConfig = BayesConfig()
    confident: ConfidentConfig = ConfidentConfig()
    gen: GenConfig = GenConfig()
    oracle: OracleConfig = OracleConfig()

    @property
    def pretraining_precision(self) -> Literal["auto", "bf16", "fp32"]:
        """Precision of pre-training: float32 for small autoencoders (decision 0014), otherwise `precision`."""
        return "fp32" if self.autoencoder.kind == "small" else self.precision

    @property
    def compiles(self) -> bool:
        return self.compile == "always" or (self.compile == "auto" and self.classifier == "resnet")


def load_config(
    task: str,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    fitting: Mapping[str, Any] | None = None,
) -> Config:
    """Settings of a task, or those `fitting` user-supplied data, updated by a YAML file and then by the overrides."""
    given = read_yaml(file) if file else {}
    given = given["settings"] if is_run(given) else given
    layers = [task_settings(task) if fitting is None else fitting, given, overrides or {}]
    return parse(reduce(_merge, layers, {}))


def parse(tree: Mapping[str, Any]) -> Config:
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise UsageError("; ".join(explain(error))) from None
    if config.classifier != "custom" and (config.classifier == "mlp") != (config.autoencoder.kind == "identity"):
        raise UsageError(
            f"classifier = {config.classifier}: does not go with autoencoder.kind = {config.autoencoder.kind} "
            "(points take mlp and identity, images the others)"
        )
    return config


def check_networks(config: Config, shape: tuple[int, ...]) -> None:
    """Refuse networks that do not take inputs of that shape: (2,) for points, (channels, height, width) for images."""
    side = shape[-1]
    takes = {
        "mlp": len(shape) == 1,
        "identity": len(shape) == 1,
        "lenet": len(shape) == 3 and side == 32,
        "small": len(shape) == 3 and side % 4 == 0,
        "resnet": len(shape) == 3 and side in (32, 64),
        "custom": True,
    }
    for name, kind in (("classifier", config.classifier), ("autoencoder.kind", config.autoencoder.kind)):
        if not takes[kind]:
            raise UsageError(f"{name} = {kind}: does not take inputs of shape {shape} (see uqgan train --help)")


def task_settings(task: str) -> dict[str, Any]:
    """Content of `settings/<task>.yaml`; empty for tasks without this file."""
    file = resources.files("uqgan") / "settings" / f"{task.partition('+')[0]}.yaml"
    return yaml.safe_load(file.read_text()) or {} if file.is_file() else {}


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(file.read_text())
    except FileNotFoundError:
        raise UsageError(f"--config = {file}: no such file") from None
    except IsADirectoryError:
        own = file / "config.yaml"
        raise UsageError(f"--config = {file}: is a folder (give {own if own.exists() else 'a YAML file'})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config = {file}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        line = getattr(error, "problem_mark", None)
        where = f" at line {line.line + 1}" if line else ""
        raise UsageError(f"--config = {file}: not valid YAML{where}") from None
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise UsageError(f"--config = {file}: must hold sections such as 'uqgan:', not a {type(tree).__name__}")
    return tree


def is_run(tree: Mapping[str, Any]) -> bool:
    """Whether this is the config.yaml of a run, which has task, method, and the settings in a section."""
    return {"task", "method"} <= set(tree) and isinstance(tree.get("settings"), dict)


def explain(error: ValidationError) -> list[str]:
    """Sentences of the form *what = value: rule (nearest fix)* for Pydantic's errors."""
    return [_sentence(finding) for finding in error.errors(include_url=False)]


def suggest(word: str, known: list[str]) -> str:
    """Suggestion of a similar known word, '; did you mean x?'; empty if there is none."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _sentence(finding: Any) -> str:
    where = ".".join(str(part) for part in finding["loc"])
    if finding["type"] == "extra_forbidden":
        return f"{where}: unknown setting{suggest(str(finding['loc'][-1]), _known(finding['loc'][:-1]))}"
    if finding["type"] == "value_error":
        return str(finding["ctx"]["error"])
    rules = {
        "greater_than_equal": "must be at least {ge}",
        "greater_than": "must be greater than {gt}",
        "less_than_equal": "must be at most {le}",
        "int": "must be a whole number",
        "float": "must be a number",
        "finite_number": "must be finite",
        "literal_error": "must be one of {expected}",
        "model_type": "must be a section of settings",
    }
    rule = rules.get(finding["type"]) or rules.get(finding["type"].partition("_")[0]) or finding["msg"].lower()
    rule = rule.format(**finding.get("ctx", {}))
    return f"{where} = {finding['input']!r}: {rule}"


def _known(path: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Config
    for part in path:
        model = model.model_fields[str(part)].annotation  # type: ignore[assignment]
    return list(model.model_fields)


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, Mapping)
        merged[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return merged
