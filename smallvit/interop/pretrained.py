"""timm's models by name: built untrained, or fetched with their weights."""

import difflib
import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from torch import nn

from smallvit.models.base import Size

_PREFIX = "timm/"
ADDONS = ("spt", "lsa")


def split_name(name: str) -> tuple[str, tuple[str, ...]]:
    """Timm's name and our add-ons from `timm/NAME+spt+lsa`."""
    base, *addons = name.removeprefix(_PREFIX).split("+")
    if addons != [addon for addon in ADDONS if addon in addons]:
        raise ValueError(f"{name!r}: add-ons are +spt, +lsa, +spt+lsa, in this order and no others")
    return base, tuple(addons)


def join_name(base: str, addons: tuple[str, ...]) -> str:
    """`timm/NAME+spt+lsa` from its parts."""
    return "+".join([_PREFIX + base, *(addon for addon in ADDONS if addon in addons)])


def known(base: str) -> str:
    """The name, if timm knows it.

    Raises:
        ValueError: It does not; the sentence has the nearest names.
    """
    import timm

    if not timm.is_model(base):
        plain = base.partition(".")[0]
        near = difflib.get_close_matches(plain, timm.list_models(), n=3, cutoff=0.5)
        hint = f"the nearest are {', '.join(near)}" if near else "timm.list_models() lists all"
        raise ValueError(f"timm has no model {base!r}; {hint}")
    return base


def make_timm(
    name: str,
    *,
    num_classes: int,
    image_size: Size,
    in_channels: int,
    options: Mapping[str, Any],
) -> nn.Module:
    """An untrained timm model, with SPT and LSA if its name asks for them.

    An SPT branch stands beside the embedding, as for a trained model, so that weights fit both.

    Raises:
        ValueError: timm does not know the name, or cannot build it so.
    """
    import timm

    base, addons = split_name(name)
    config = timm.get_pretrained_cfg(known(base))
    sized = {"img_size": image_size} if config is not None and config.fixed_input_size else {}
    given = {"num_classes": num_classes, "in_chans": in_channels, **sized, **options}
    try:
        model: nn.Module = timm.create_model(base, pretrained=False, **given)
    except Exception as error:  # whatever timm's many constructors make of an option
        told = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise ValueError(f"timm could not build {base} with {told}: {error}") from error
    return add(model, base, spt="spt" in addons, lsa="lsa" in addons)


def add(model: nn.Module, name: str, *, spt: bool, lsa: bool) -> nn.Module:
    """The model with SPT and LSA, as a sentence where that is impossible."""
    if not (spt or lsa):
        return model
    from smallvit.interop.timm import localize

    try:
        return localize(model, spt=spt, lsa=lsa)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def fetch(name: str) -> nn.Module:
    """A timm model with its trained weights, as it was published, through timm's own cache.

    Raises:
        ValueError: timm has no such model, or no weights for it.
        OSError: The weights are not in the cache and could not be fetched.
    """
    import timm

    base = known(split_name(name)[0])
    plain = base.partition(".")[0]
    tagged = timm.list_pretrained(f"{plain}.*")
    if not tagged or ("." in base and base not in tagged):
        has = f"it has {', '.join(tagged)}" if tagged else "it has none for this architecture"
        raise ValueError(f"timm has no trained weights called {base}; {has}")
    config = timm.get_pretrained_cfg(base)
    folder, host, file = _places(config)
    try:
        if file is None:
            _resolve(host)
        overlay = None if file is None else {"file": file}
        model: nn.Module = timm.create_model(base, pretrained=True, pretrained_cfg_overlay=overlay)
    except Exception as error:  # hub, proxy, disk and file fail in as many ways
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        where = f"are not in {folder} and could not be fetched" if file is None else "are broken"
        raise OSError(
            f"the weights of {base} {where} ({reason}); fetch them where there is a network, or "
            f"give a local file: --pretrained FILE.safetensors --model {_PREFIX}{plain}"
        ) from error
    return model


def _places(config: Any) -> tuple[str, str, str | None]:
    """The cache folder, the host behind it, and the file in the cache if it is there."""
    import torch.hub

    if not config.hf_hub_id:
        folder = os.path.join(torch.hub.get_dir(), "checkpoints")
        file = os.path.join(folder, os.path.basename(urlsplit(config.url).path))
        return folder, config.url, file if os.path.isfile(file) else None
    from huggingface_hub import constants, try_to_load_from_cache

    for name in (config.hf_hub_filename or "model.safetensors", "pytorch_model.bin"):
        found = try_to_load_from_cache(config.hf_hub_id, name)
        if isinstance(found, str):
            return constants.HF_HUB_CACHE, constants.ENDPOINT, found
    return constants.HF_HUB_CACHE, constants.ENDPOINT, None


def _resolve(url: str) -> None:
    """Fails at once where a host cannot be found; the hub's client tries for a minute."""
    if not getproxies():
        socket.getaddrinfo(urlsplit(url).hostname, 443)
