"""The table ``[model]``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from dspodfl.config.base import NonNegative, Size, Table, as_list, is_toml, refuse

ModelName = Field(description="the model")
L2 = "λ of the penalty (λ/2)‖θ‖² that is added to the loss"


class Svm(Table):
    """Linear, multi-class hinge loss averaged over samples and classes."""

    name: Annotated[Literal["svm"], ModelName] = "svm"


class Logistic(Table):
    """Linear, cross entropy."""

    name: Annotated[Literal["logistic"], ModelName]
    l2: NonNegative = Field(0.0, description=L2)


class Linear(Table):
    """Linear regression, half squared error."""

    name: Annotated[Literal["linear"], ModelName]
    l2: NonNegative | None = Field(None, description=f"{L2}; with data 'ridge' it is data.l2", examples=[0.1])


class Mlp(Table):
    """Fully connected, ReLU."""

    name: Annotated[Literal["mlp"], ModelName]
    hidden: Annotated[list[Size], BeforeValidator(as_list), Field(min_length=1)] = Field(
        [64], description="widths of the hidden layers"
    )


class Cnn(Table):
    """3 × 3 convolutions, ReLU and pooling, then linear."""

    name: Annotated[Literal["cnn"], ModelName]
    channels: Annotated[list[Size], BeforeValidator(as_list), Field(min_length=1)] = Field(
        [16, 32], description="output channels of the convolutions"
    )


class Vgg11(Table):
    """VGG11, from scratch or from a file of weights in torchvision's naming."""

    name: Annotated[Literal["vgg11"], ModelName]
    norm: Literal["none", "group"] = Field("none", description="group: a GroupNorm after each convolution")
    head: Literal["cifar", "imagenet"] = Field(
        "cifar",
        description="cifar: one linear layer, and of a weights file the features alone; imagenet: torchvision's",
    )
    weights: str | None = Field(
        None,
        description="a file of weights in torchvision's naming: .safetensors, or .pth loaded as weights only",
        examples=["vgg11.safetensors"],
    )


class Factory(Table):
    """Your own model: any function that returns a torch nn.Module."""

    factory: str = Field(
        description="instead of a name: 'package.module:function' that returns the module",
        examples=["package.module:function"],
    )
    arguments: dict[str, Any] = Field({}, description="keyword arguments of the function")
    loss: Literal["cross_entropy", "hinge", "squared_error"] | None = Field(
        None,
        description="the loss; cross_entropy for classes and squared_error for regression if not given",
        examples=["cross_entropy"],
    )
    l2: NonNegative = Field(0.0, description=L2)

    @model_validator(mode="after")
    def _written(self) -> Factory:
        for key, value in self.arguments.items():
            if not is_toml(value):
                advice = "what TOML can write; bring other models as Python objects: run(config, model=…)"
                refuse(f"model.arguments.{key}", value, advice)
        return self


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
