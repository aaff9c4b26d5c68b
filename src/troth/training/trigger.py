"""The trigger of a backdoor: a bright square in the lower right corner of an image.

Here, where the attack that plants it and the metric that measures it both find it.
"""

from torch import Tensor

from troth.training.task import Batch

IMAGES, LABELS = "images", "labels"  # names in a batch

_SMALLEST, _SHARE = 2, 8  # pixels of a side: at least so many, and an eighth of the image's
_CHANNELS_AND_SIDES = 3


def has_images(batch: Batch) -> bool:
    """Whether a batch has labels, and images of some channels, height and width for each of them."""
    if IMAGES not in batch or LABELS not in batch:
        return False
    return batch[IMAGES].ndim == batch[LABELS].ndim + _CHANNELS_AND_SIDES


def stamped(images: Tensor) -> Tensor:
    """The images with the trigger on them: bytes of 255, or ones where pixels are fractions."""
    marked = images.clone()
    height, width = (max(_SMALLEST, side // _SHARE) for side in images.shape[-2:])
    marked[..., -height:, -width:] = 1.0 if images.is_floating_point() else 255
    return marked
