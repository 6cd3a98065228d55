"""The table ``[model]``."""

from __future__ import annotations

from datetime import date, time
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from dspodfl.config.tables import NonNegative, Size, Table, as_list, refuse


class Svm(Table):
    """Linear, multi-class hinge loss."""

    name: Literal["svm"] = "svm"


class Logistic(Table):
    """Linear, cross entropy, with an L2 penalty if asked for."""

    name: Literal["logistic"]
    l2: NonNegative = 0.0


class Linear(Table):
    """Linear regression, half squared error; the penalty is that of the data where they are ``ridge``."""

    name: Literal["linear"]
    l2: NonNegative | None = None


class Mlp(Table):
    """Fully connected, ReLU."""

    name: Literal["mlp"]
    hidden: Annotated[list[Size], BeforeValidator(as_list), Field(min_length=1)] = [64]


class Cnn(Table):
    """3 × 3 convolutions, ReLU and pooling, then linear."""

    name: Literal["cnn"]
    channels: Annotated[list[Size], BeforeValidator(as_list), Field(min_length=1)] = [16, 32]


class Vgg11(Table):
    """VGG11, from scratch or from a file of weights in torchvision's naming."""

    name: Literal["vgg11"]
    norm: Literal["none", "group"] = "none"
    head: Literal["cifar", "imagenet"] = "cifar"
    weights: str | None = None


class Factory(Table):
    """Your own: any function that gives an nn.Module."""

    factory: str
    arguments: dict[str, Any] = {}
    loss: Literal["cross_entropy", "hinge", "squared_error"] | None = None
    l2: NonNegative = 0.0

    @model_validator(mode="after")
    def _written(self) -> Factory:
        for key, value in self.arguments.items():
            if not _is_toml(value):
                advice = "what TOML can write; bring other models as Python objects: run(config, model=…)"
                refuse(f"model.arguments.{key}", value, advice)
        return self


def _is_toml(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_toml(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_toml, value))
    return isinstance(value, str | int | float | date | time)


def _model_tag(value: Any) -> str:
    has = value.__contains__ if isinstance(value, dict) else lambda key: hasattr(value, key)
    if has("factory") and not has("name"):
        return "factory"
    name = value.get("name", "svm") if isinstance(value, dict) else getattr(value, "name", "svm")
    return name if isinstance(name, str) else repr(name)


Model = Annotated[
    Annotated[Svm, Tag("svm")]
    | Annotated[Logistic, Tag("logistic")]
    | Annotated[Linear, Tag("linear")]
    | Annotated[Mlp, Tag("mlp")]
    | Annotated[Cnn, Tag("cnn")]
    | Annotated[Vgg11, Tag("vgg11")]
    | Annotated[Factory, Tag("factory")],
    Discriminator(_model_tag),
]
