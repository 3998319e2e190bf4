"""The processor's files, which a checkpoint with images needs beside its weights.

    model.name_or_path  --processor_files-->  name -> content  --write_checkpoint-->  step-000050/

Training reads text and never meets the processor, but a server does not start without it. The files
go through as they are: nothing that the processor would import has to be installed here.
"""

import logging
from pathlib import Path
from typing import Final

from huggingface_hub import snapshot_download
from transformers.utils import IMAGE_PROCESSOR_NAME, PROCESSOR_NAME, VIDEO_PROCESSOR_NAME

logger = logging.getLogger(__name__)

NAMES: Final = (IMAGE_PROCESSOR_NAME, PROCESSOR_NAME, VIDEO_PROCESSOR_NAME)


# docs/decisions/0038
def processor_files(source: str, revision: str | None) -> dict[str, bytes]:
    """The processor's files by name, of those that the model has.

    If the hub is out of reach there is only a warning: the weights matter more than these.
    """
    try:
        folder = Path(source)
        if not folder.is_dir():
            folder = Path(snapshot_download(source, revision=revision, allow_patterns=list(NAMES)))
        return {name: (folder / name).read_bytes() for name in NAMES if (folder / name).is_file()}
    except OSError as error:
        logger.warning(
            "the files of %s's processor cannot be had (%s): checkpoints will lack %s, which a "
            "server of them needs",
            source,
            error,
            ", ".join(NAMES),
        )
        return {}
