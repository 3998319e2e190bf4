"""Files of the start model that a checkpoint hands on as they are.

    model.name_or_path  --files_to_hand_on-->  name -> content  --write_checkpoint-->  step-000050/

Training samples nothing and reads text only, so it never uses a generation config or an image
processor, but who loads the checkpoint does. The files go through as bytes: transformers refuses to
save a generation config that many published models have (`top_p` without `do_sample`), and nothing
that a processor would import has to be installed here.
"""

import logging
from pathlib import Path
from typing import Final

from huggingface_hub import snapshot_download
from transformers.utils import (
    GENERATION_CONFIG_NAME,
    IMAGE_PROCESSOR_NAME,
    PROCESSOR_NAME,
    VIDEO_PROCESSOR_NAME,
)

logger = logging.getLogger(__name__)

GENERATION_CONFIG: Final = GENERATION_CONFIG_NAME
OF_IMAGES: Final = (IMAGE_PROCESSOR_NAME, PROCESSOR_NAME, VIDEO_PROCESSOR_NAME)


# docs/decisions/0038
def files_to_hand_on(source: str, revision: str | None, *, images: bool) -> dict[str, bytes]:
    """The files by name, of those that the model has; an image processor's with `images`.

    If the hub is out of reach there is only a warning: the weights matter more than these.
    """
    names = (GENERATION_CONFIG, *OF_IMAGES) if images else (GENERATION_CONFIG,)
    try:
        folder = Path(source)
        if not folder.is_dir():
            folder = Path(snapshot_download(source, revision=revision, allow_patterns=list(names)))
        return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    except OSError as error:
        logger.warning(
            "the files %s of %s cannot be had (%s): checkpoints will lack those that it has",
            ", ".join(names),
            source,
            error,
        )
        return {}
