"""timm's models with their trained weights, through timm's own cache."""

import os
import socket
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from torch import nn

from smallvit.models.names import check_timm


def fetch(name: str) -> nn.Module:
    """A timm model with its trained weights, as it was published, through timm's own cache.

    Args:
        name: timm's own name of it, with its tag if wanted.

    Raises:
        ValueError: timm has no such model, or no weights for it.
        OSError: The weights are not in the cache and could not be fetched.
    """
    import timm

    check_timm(name)
    plain = name.partition(".")[0]
    tagged = timm.list_pretrained(f"{plain}.*")
    if not tagged or ("." in name and name not in tagged):
        has = f"it has {', '.join(tagged)}" if tagged else "it has none for this architecture"
        raise ValueError(f"timm has no trained weights called {name}; {has}")
    folder, host, file = _cache(timm.get_pretrained_cfg(name))
    try:
        if file is None and not getproxies():
            # Fails at once where the host cannot be found; the hub's client tries for a minute.
            socket.getaddrinfo(urlsplit(host).hostname, 443)
        overlay = None if file is None else {"file": file}
        model: nn.Module = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    except Exception as error:  # hub, proxy, disk and file fail in as many ways
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        where = f"are not in {folder} and could not be fetched" if file is None else "are broken"
        raise OSError(
            f"the weights of {name} {where} ({reason}); fetch them where there is a network, or "
            f"give a local file: --pretrained FILE.safetensors --model timm/{plain}"
        ) from error
    return model


def _cache(config: Any) -> tuple[str, str, str | None]:
    """The cache folder, the host behind it, and the file in the cache if it is there."""
    import torch.hub

    if not config.hf_hub_id:
        folder = os.path.join(torch.hub.get_dir(), "checkpoints")
        file = os.path.join(folder, os.path.basename(urlsplit(config.url).path))
        return folder, config.url, file if os.path.isfile(file) else None
    from huggingface_hub import constants, try_to_load_from_cache

    for name in (config.hf_hub_filename or "model.safetensors", "pytorch_model.bin"):
        cached = try_to_load_from_cache(config.hf_hub_id, name)
        if isinstance(cached, str):
            return constants.HF_HUB_CACHE, constants.ENDPOINT, cached
    return constants.HF_HUB_CACHE, constants.ENDPOINT, None
