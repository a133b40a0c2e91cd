"""An early check that the engine can load its model, with a clear error."""

from __future__ import annotations

from pathlib import Path

from autellix_backend.engines.base import ModelNotFoundError

CONFIG_FILES = ("config.json", "params.json")
SINGLE_FILE_SUFFIXES = (".gguf",)
HUB_TIMEOUT_S = 10.0


def check_model(model: str) -> None:
    """Check that the engine can load `model`: a folder, a file, or a Hugging Face id; blocks on the network.

    The engine itself checks an address of another store (`s3://...`).

    Raises:
        ModelNotFoundError: if it is none of these, or the id is neither cached nor reachable.
    """
    path = Path(model).expanduser()
    if path.exists():
        _check_path(model, path)
    elif _looks_like_path(model):
        raise ModelNotFoundError(model, "does not exist")
    elif "://" not in model:
        _check_hub(model)


def _check_path(model: str, path: Path) -> None:
    if path.is_dir() and not any((path / name).is_file() for name in CONFIG_FILES):
        raise ModelNotFoundError(model, "is a folder without a config.json")
    if path.is_file() and path.suffix not in SINGLE_FILE_SUFFIXES:
        raise ModelNotFoundError(model, "is a file, not a model's folder")


def _looks_like_path(model: str) -> bool:
    return model.startswith(("/", "./", "../", "~")) or (model.count("/") > 1 and "://" not in model)


def _check_hub(model: str) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        if isinstance(huggingface_hub.try_to_load_from_cache(model, CONFIG_FILES[0]), str):
            return
        huggingface_hub.model_info(model, timeout=HUB_TIMEOUT_S)
    except errors.HFValidationError:
        raise ModelNotFoundError(model, "is neither a folder nor a Hugging Face id") from None
    except errors.RepositoryNotFoundError:
        raise ModelNotFoundError(
            model, "is not on Hugging Face, or needs a token (`hf auth login`)"
        ) from None
    except _network_errors(errors.HfHubHTTPError) as error:
        raise ModelNotFoundError(model, "is not cached, and Hugging Face cannot be reached") from error


def _network_errors(http_error: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the errors of the library's HTTP client, which differs between releases."""
    return (OSError, *(base for base in http_error.__bases__ if issubclass(base, Exception)))
