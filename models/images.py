"""A model for another number of images at once, proven to compute each as the model itself does."""

from __future__ import annotations

from collections.abc import Mapping

from iosched.models.batch_independence import check_images_apart
from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.export import source_of
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.source import read_proto

Shape = tuple[int, ...]


def with_images(model: Model, images: int) -> Model:
    """The same model for a batch of so many images; its operators have the names and types that they have in `model`.

    Args:
        model: bound to a batch, of which it is proven to compute the images apart.
        images: at least one.

    Raises:
        UsageError: the model mixes the images of a batch, or does something else for another number of them; says
            which operator, input or output stands in the way.
    """
    if images == model.batch_size:
        return model
    found = _loaded(model, images)
    inputs = image_inputs(model, found)
    check_images_apart(model, inputs)
    _check_operators(model, found)
    _check_shapes(model, found)
    return found


def image_inputs(one: Model, other: Model) -> tuple[str, ...]:
    """The inputs of which there is one for each image: those that differ between two numbers of images.

    Raises:
        UsageError: there is none.
    """
    names = tuple(name for name, shape in one.bindings.items() if other.bindings.get(name) != shape)
    if not names:
        raise UsageError("no input has a dimension that counts images")
    return names


def _loaded(model: Model, images: int) -> Model:
    try:
        return load_model(
            source_of(model), name=model.name, batch_size=images, input_shapes=_free_shapes(model, images)
        )
    except (InvalidModelError, UsageError) as error:
        raise UsageError(f"the model cannot be made for {images} of its {model.batch_size} images: {error}") from error


def _free_shapes(model: Model, images: int) -> Mapping[str, Shape]:
    """The shapes of the inputs of which the file leaves more open than the number of images."""
    found = {}
    for value in read_proto(source_of(model)).graph.input:
        dims = value.type.tensor_type.shape.dim
        if all(dim.HasField("dim_value") for dim in dims[1:]) and len(dims):
            continue
        if shape := model.bindings.get(value.name):
            fixed = dims[0].dim_value if len(dims) and dims[0].HasField("dim_value") else images
            found[value.name] = (fixed, *shape[1:])
    return found


def _check_operators(model: Model, other: Model) -> None:
    ours, theirs = ([(each.name, each.type) for each in one.graph.operators] for one in (model, other))
    for (name, kind), found in zip(ours, theirs, strict=False):
        if (name, kind) != found:
            raise UsageError(f"{kind} {name!r} is another operator for another number of images")
    if len(ours) != len(theirs):
        raise UsageError("there are other operators for another number of images")


def _check_shapes(model: Model, other: Model) -> None:
    for name, spec in model.graph.tensor.items():
        found = other.graph.tensor.get(name)
        if found is None or not _is_alike(spec.shape, found.shape, model.batch_size, other.batch_size):
            raise UsageError(f"the shape of {name!r} does not follow the number of images")


def _is_alike(shape: Shape | None, other: Shape | None, images: int, others: int) -> bool:
    if not shape or not other or shape == other:
        return shape == other
    return (shape[0], other[0]) == (images, others) and shape[1:] == other[1:]
