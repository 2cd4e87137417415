"""Names the classes of images with the .onnx file of the same name beside this script.

Needs numpy, pillow and onnxruntime: python THIS.py image.jpg …
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def read(path: str) -> np.ndarray:
    """An image as height × width × red, green and blue; transparent ones lie on white."""
    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.array(image.convert("RGB"))


def main(paths: list[str], top: int = 5) -> None:
    """Prints the most probable classes of each image."""
    session = onnxruntime.InferenceSession(Path(__file__).with_suffix(".onnx"))
    classes = json.loads(session.get_modelmeta().custom_metadata_map["smallvit"])["classes"]
    for path in paths:
        # The graph resizes, normalises and calibrates; a batch may hold images of one size.
        (shares,) = session.run(["probabilities"], {"images": read(path)[None]})
        best = np.argsort(-shares[0], kind="stable")[:top]
        predictions = (f"{classes[k]} {100 * shares[0][k]:.1f} %" for k in best)
        sys.stdout.write("\t".join([path, *predictions]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
