"""Our models under timm's names, and timm's models with our parts.

`localize` turns a timm model into its SPT/LSA version. Importing this module registers every
model of ours, and every add-on combination, with timm: `cct_7_3x1` as `smallvit_cct_7_3x1`,
`vit_9_p4+spt+lsa` as `smallvit_vit_9_p4_spt_lsa`.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from smallvit.layers import Block, ClassToken, MeanPool, SeqPool
from smallvit.models.base import Backbone
from smallvit.models.build import make_config
from smallvit.models.localize import attention_maps, localize
from smallvit.models.names import MODELS, find_variant, list_models
from smallvit.models.parameters import UNDECAYED
from smallvit.models.timm_features import FeatureMaps
from smallvit.sizes import Size

__all__ = ["TimmModel", "attention_maps", "localize", "timm_name"]

#: Other spellings of an option, and the one that is passed on.
_SPELLINGS = {
    "image_size": "img_size",
    "in_channels": "in_chans",
    "drop_path_rate": "drop_path",
    "attn_drop_rate": "attn_dropout",
    "proj_drop_rate": "dropout",
    "embed_dim": "dim",
    "window_size": "window",
}
_MODULE = vars(nn.Module()).keys()  # what torch keeps of every module
_POOLS: dict[type[nn.Module], str] = {ClassToken: "token", SeqPool: "seq", MeanPool: "avg"}


class TimmModel(FeatureMaps):
    """What timm asks of a model, on top of a family; it adds no parameter and renames none.

    Unlike ours, `forward_features` returns a tensor: the class token, if there is one, and the
    patch tokens. `forward_head` pools it.

    Attributes:
        global_pool: "token", "seq" or "avg", as the model was built; "avg", the mean of the
            patch tokens; or "", no pooling.
        drop_rate: Dropout in front of the head.
    """

    drop_rate: float = 0.0
    pretrained_cfg: dict[str, Any]
    default_cfg: dict[str, Any]
    _global_pool: str | None = None

    @property
    def own_pool(self) -> str:
        """The pool the model was built with, in timm's words."""
        return _POOLS[type(self.pool)]

    @property
    def global_pool(self) -> str:
        """How `forward_head` pools, in timm's words."""
        return self.own_pool if self._global_pool is None else self._global_pool

    @global_pool.setter
    def global_pool(self, value: str) -> None:
        allowed = sorted({self.own_pool, "avg", ""})
        if value not in allowed:
            raise ValueError(f"global_pool is {value!r}: {self.name} has {allowed}")
        self._global_pool = value

    @property
    def num_classes(self) -> int:
        """Width of the head."""
        return self.config.num_classes

    @property
    def num_features(self) -> int:
        """Width of the features."""
        return self.dim

    head_hidden_size = num_features

    @property
    def num_prefix_tokens(self) -> int:
        """Class tokens in front of the patch tokens."""
        return self.pool.prefix

    def forward_features(  # type: ignore[override]  # timm's protocol
        self, images: Float[Tensor, "B C H W"], *, weights: list[Tensor] | None = None
    ) -> Float[Tensor, "B N D"]:
        """Tokens, the class token first.

        Args:
            weights: A list to which every attention appends its weights, first layer first.
        """
        return self.joined(super().forward_features(images, weights=weights))

    def forward_head(self, x: Float[Tensor, "B N D"], pre_logits: bool = False) -> Tensor:
        """Pools and classifies; with `pre_logits` only pools."""
        if self.global_pool == self.own_pool:
            x = self.pool(x)
        elif self.global_pool == "avg":
            x = x[:, self.num_prefix_tokens :].mean(1)
        x = F.dropout(x, self.drop_rate, self.training)
        return x if pre_logits else self.head(x)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Tensor:
        """Logits."""
        return self.forward_head(self.forward_features(images))

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head; 0 classes for none."""
        if global_pool is not None:
            self.global_pool = global_pool
        self.config = replace(self.config, num_classes=num_classes)
        self.head = self.make_head().to(next(self.parameters())).train(self.training)

    def no_weight_decay(self) -> set[str]:
        """Positions, class tokens, relative biases and temperatures."""
        names = (name for name, _ in self.named_parameters())
        return {name for name in names if name.rpartition(".")[2] in UNDECAYED}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """How parameters form layers, first to last; `coarse` takes a stage as one."""
        layers = self.parameter_layers()
        if coarse:
            stages = groupby(layers, lambda parts: parts[-1].split(".")[:2])
            layers = [tuple(chain(*parts)) for _, parts in stages]
        return {
            str(number): rf"^(?:{'|'.join(map(re.escape, parts))})(?:\.|$)"
            for number, parts in enumerate(layers)
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Whether blocks compute their activations again instead of keeping them."""
        for part in self.modules():
            if isinstance(part, Block):
                part.recompute = "everything" if enable else "nothing"

    def resized(self, image_size: int | Size) -> "TimmModel":
        """This model for another image size: same weights, positions resampled to its grid."""
        if self.pruned:
            raise ValueError(
                f"{self.name} was pruned to some of its features: build it for the image size "
                "(`img_size=`), or resize it before it is pruned"
            )
        new: Any = super().resized(image_size)
        new.drop_rate, new.global_pool = self.drop_rate, self.global_pool
        new.pretrained_cfg = new.default_cfg = _described(self.pretrained_cfg, new)
        return new

    def set_input_size(
        self, img_size: int | Size | None = None, patch_size: int | Size | None = None
    ) -> None:
        """Makes this model one for another image size, in place: see `resized`.

        Parameters stay the same objects, which an optimiser may hold, but for positions and
        relative biases whose number changes.

        Args:
            img_size: Height and width; one number means a square, None leaves the size.
            patch_size: Refused: patches are part of the weights.
        """
        if patch_size is not None:
            raise ValueError(
                f"patch_size is {patch_size}: the patches of {self.name} are part of its weights; "
                "build a model of another name"
            )
        if img_size is not None:
            for part, new in zip(self.modules(), self.resized(img_size).modules(), strict=True):
                _take_size(part, new)


@torch.no_grad()
def _take_size(part: nn.Module, new: nn.Module) -> None:
    """Gives a part what depends on the image size in the same part of another model."""
    resample: Any = getattr(part, "resampled", None)
    for name in resample(new) if resample else ():
        parameter, value = part.get_parameter(name), new.get_parameter(name)
        if parameter.shape == value.shape:
            parameter.copy_(value)
        else:
            setattr(part, name, value.requires_grad_(parameter.requires_grad))
    part._buffers = new._buffers
    part.__dict__ |= {key: value for key, value in vars(new).items() if key not in _MODULE}


def _timm_class(family: type[Backbone]) -> type[TimmModel]:
    """A family by timm's protocol; `__module__` lets pickle find it."""
    about = {"__doc__": f"{family.__name__} for timm.", "__module__": __name__}
    return type(f"Timm{family.__name__}", (TimmModel, family), about)


_CLASSES = {
    family: _timm_class(family)
    for family in dict.fromkeys(variant.model for variant in MODELS.values())
}
globals().update({kind.__name__: kind for kind in _CLASSES.values()})


def timm_name(name: str) -> str:
    """The name of one of our models in timm's registry."""
    return "smallvit_" + name.replace("+", "_")


def _build(
    name: str,
    *,
    num_classes: int,
    img_size: int | Size,
    in_chans: int,
    drop_rate: float = 0.0,
    global_pool: str | None = None,
    **options: Any,
) -> TimmModel:
    sizes = {"num_classes": num_classes, "image_size": img_size, "in_channels": in_chans}
    model = _CLASSES[find_variant(name).model](make_config(name, **sizes, **options))
    model.name, model.drop_rate = name, drop_rate
    if global_pool is not None:
        model.global_pool = global_pool
    return model


def _described(cfg: dict[str, Any], model: TimmModel) -> dict[str, Any]:
    """A config whose data settings are those of the model as it was built."""
    channels = model.config.in_channels
    data: dict[str, Any] = {"input_size": (channels, *model.config.image_size)}
    if channels != len(cfg["mean"]):
        data |= {"mean": (0.5,) * channels, "std": (0.5,) * channels}
    return {**cfg, **data}


def _fitted(state: dict[str, Tensor], model: TimmModel) -> dict[str, Tensor]:
    """Trained weights for a model as timm was asked to build it.

    Positions and relative biases are resampled from the image size of the weights, which their
    config says; a head of another number of classes is left as it started.
    """
    body = {key: value for key, value in state.items() if not key.startswith("head.")}
    size = tuple(model.pretrained_cfg["input_size"][1:])
    if size != model.config.image_size:
        with torch.device("meta"):
            trained = type(model)(replace(model.config, image_size=size, num_classes=0))
        trained.load_state_dict(body, assign=True)
        body = {k: v for k, v in trained.state_for(model).items() if not k.startswith("head.")}
    head = {f"head.{key}": value for key, value in model.head.state_dict().items()}
    if all(key in state and state[key].shape == value.shape for key, value in head.items()):
        head = {key: state[key] for key in head}
    return body | head


def _entry(name: str) -> Callable[..., nn.Module]:
    """The function timm's registry calls for a name."""

    def entry(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        options: dict[str, Any] = {}
        for key, value in kwargs.items():
            option = _SPELLINGS.get(key, key)
            if option in options:
                raise ValueError(f"{option} was passed twice, once as {key}")
            options[option] = value
        shown = {"feature_cls": "getter", "out_indices": None, **options.pop("feature_cfg", {})}
        if options.get("features_only"):
            shown["feature_cls"] = options.pop("feature_cls", shown["feature_cls"])
        if shown["feature_cls"] != "getter":
            raise ValueError(
                f"feature_cls is {shown['feature_cls']!r}: {timm_name(name)} has 'getter' alone, "
                "which returns maps"
            )
        model: Any = build_model_with_cfg(
            partial(_build, name),
            timm_name(name),
            pretrained,
            pretrained_filter_fn=_fitted,
            feature_cfg=shown,
            **options,
        )
        built = model.model if options.get("features_only") else model
        model.pretrained_cfg = model.default_cfg = _described(model.pretrained_cfg, built)
        return model

    entry.__name__ = entry.__qualname__ = timm_name(name)
    entry.__doc__ = f"{name} by timm's protocol."
    return entry


def _config(name: str) -> dict[str, Any]:
    size = find_variant(name).image_size
    config = make_config(name, num_classes=1000, image_size=size)
    return {
        "input_size": (3, size, size),
        "fixed_input_size": True,
        "crop_pct": 1.0,
        "first_conv": config.first_conv,  # which timm adapts to other channels
        "classifier": "head",
        "license": "apache-2.0",
    }


_NAMES = [*list_models(), *list_models("*+*")]

#: What timm's registry reads of this module.
default_cfgs = generate_default_cfgs({timm_name(name): _config(name) for name in _NAMES})

# timm puts each entry point on `__all__`, so each must be a name of this module.
for _name in _NAMES:
    globals()[timm_name(_name)] = register_model(_entry(_name))
