"""Names the classes of images with the .onnx file of the same name beside this script.

Needs numpy, pillow and onnxruntime: python THIS.py image.jpg ...
"""

import io
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def read(path: str) -> np.ndarray:
    """An image as height × width × red, green and blue; transparent ones lie on white."""
    # By its bytes: Pillow mixes up the sides of some turned files that it opens by name.
    data = io.BytesIO(Path(path).read_bytes())
    with Image.open(data, formats=("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")) as file:
        image, tags = ImageOps.exif_transpose(file), getattr(file, "tag_v2", {})
    extra = tags.get(338, (0,) if tags.get(262) == 2 and tags.get(277, 1) > 3 else ())
    if image.mode[0] in "IF" or 0 in extra:
        raise ValueError("it has more than 8 bits or further channels: save it as 8-bit RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.array(image.convert("RGB"))


def main(paths: list[str], top: int = 5) -> int:
    """Prints the most probable classes of each image; returns how many could not be read."""
    session = onnxruntime.InferenceSession(Path(__file__).with_suffix(".onnx"))
    classes = json.loads(session.get_modelmeta().custom_metadata_map["smallvit"])["classes"]
    failed = 0
    for path in paths:
        try:
            # The graph resizes, normalises and calibrates; a batch may hold images of one size.
            (shares,) = session.run(["probabilities"], {"images": read(path)[None]})
            best = np.argsort(-shares[0], kind="stable")[:top]
            words = [f"{classes[k]} {100 * shares[0][k]:.1f} %" for k in best]
        except (ValueError, OSError) as error:  # Pillow's may name the buffer: that is left out
            failed, words = failed + 1, [f"error: {str(error).partition(' <_io.')[0]}"]
        sys.stdout.write("\t".join([path, *words]) + "\n")
    return failed


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(min(main(sys.argv[1:]), 1))
