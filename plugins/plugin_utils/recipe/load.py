# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes: where they are found, how they are read, and what an inventory makes of them."""

from __future__ import annotations

import difflib
import functools
import json
import os
import re

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.server_spec import canonical
from ansible_collections.inference.fleet.plugins.plugin_utils import seen_files
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import MAX_DEPTH, clean
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import close_to, path_text, show, visible
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides, tuning
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.schema import (
    COLLECTION,
    all_problems,
    coerce,
    recipe_schema,
)

try:
    import yaml
except ImportError:
    HAS_YAML = False
    SafeLoader = object
else:
    HAS_YAML = True
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

OWN_RECIPES = os.path.join(COLLECTION, "recipes")
IMAGES, PROBES = "images.yml", "probes"
IMAGE_KEY = re.compile(r"[a-z0-9][a-z0-9.-]*")  # an image with its registry or tag has a / or a :
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


OFFERED = ("overlays", "tuning")  # what a recipe offers and an inventory chooses from
FIXED = ("name", "schema", *OFFERED)
MAX_BYTES = 2**20  # of a recipe
# Numbers that YAML 1.1 reads otherwise than they look: 010 is 8, 1:30 is 90.
UNLIKE = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")


class _Loader(SafeLoader):
    """YAML, strictly: a key given twice, keys that are no strings and numbers that are read otherwise are mistakes.

    Aliases and merge keys (<<) mean what YAML says.
    """

    def __init__(self, stream):
        super().__init__(stream)
        self.mistakes = []

    def _mistake(self, node, text, *values):
        self.mistakes.append("line %d: %s" % (node.start_mark.line + 1, text % values))

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _value in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key_node, yaml.ScalarNode):
                self._mistake(key_node, "a key is a list or a mapping; a key must be a string. Put it into quotes.")
                raise _Unreadable
            key = visible(key_node.value)
            if key_node.tag == "tag:yaml.org,2002:merge":
                key = "<<"
            elif key_node.tag != "tag:yaml.org,2002:str":
                self._mistake(
                    key_node, "the key %s is no string (YAML reads it as %s); a key must be one. Put it into quotes: "
                    '"%s".', key, key_node.tag.rpartition(":")[2], key
                )  # fmt: skip
            if key in seen:
                self._mistake(key_node, "the key '%s' is given twice; keep one.", key)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_scalar(self, node):
        if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and UNLIKE.fullmatch(node.value):
            self._mistake(
                node, 'YAML reads %s as another number; put it into quotes, "%s", or write the number that is meant.',
                node.value, node.value,
            )  # fmt: skip
        return super().construct_scalar(node)


class _Unreadable(Exception):
    """What follows cannot be read; the loader's mistakes say why."""


def _read_yaml(text):
    """What YAML ``text`` says. FleetError has a line for each mistake."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=SafeLoader):  # libyaml's composer overflows the stack
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise FleetError(
                    "recipe.nested-too-deep",
                    "line %d: nested more than %d deep; allowed: less. Write it flatter.",
                    (event.start_mark.line + 1, MAX_DEPTH),
                )
        loader = _Loader(text)
        try:
            content = loader.get_single_data()
        except _Unreadable:
            content = None
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, AttributeError) as error:
        tags = " Remove the tag; recipes have none." if "tag:" in str(error) or "!" in str(error) else ""
        raise FleetError(
            "recipe.not-yaml",
            "not valid YAML: %s.%s Correct it there; yamllint shows such places too.",
            (" ".join(str(error).split()).rstrip("."), tags),
        ) from error
    if loader.mistakes:
        raise FleetError.together(FleetError("recipe.yaml-misread", line) for line in loader.mistakes)
    return content


def available(paths):
    """Names of the recipes in ``paths``, sorted."""
    names = set()
    for folder in paths:
        names.update(name[:-4] for name in seen_files.files_in(folder) if name.endswith(".yml") and name != IMAGES)
    return sorted(names)


def find_recipe(name, paths):
    """Path of the recipe ``name``: the first of ``paths`` that has it, else the collection's own, else FleetError."""
    folders = [*paths, OWN_RECIPES]
    if isinstance(name, str) and name:
        for folder in folders:
            path = os.path.join(folder, name + ".yml")
            if os.path.basename(name) == name and seen_files.is_file(path) and name + ".yml" != IMAGES:
                return path
    known = available(folders)
    for path in [os.path.join(folder, "%s.%s" % (name, ending)) for folder in folders for ending in ("yml", "yaml")]:
        if (
            isinstance(name, str)
            and name
            and os.path.basename(name) == name
            and "\0" not in name
            and os.path.lexists(path)
        ):
            raise FleetError(
                "recipe.not-a-file",
                "fleet_recipe is %s, but %s is no file that ends in .yml. Make it one.",
                (json.dumps(name), path),
            )
    close = difflib.get_close_matches(str(name), known, 1)
    raise FleetError(
        "recipe.unknown",
        "fleet_recipe is %s, but there is no such recipe%s; allowed: %s. Looked in: %s.",
        (json.dumps(name), "; did you mean '%s'?" % close[0] if close else "", ", ".join(known), ", ".join(folders)),
    )


def _mapping_of(path, what):
    """The mapping that a YAML file holds. FleetError says what is wrong with it. what: (its name, an example)."""
    label = label_of(path)
    if not HAS_YAML:
        raise FleetError(
            "recipe.pyyaml-missing",
            "The Python package PyYAML is missing on the control node. Install ansible-core again, which requires it.",
        )
    try:
        data = seen_files.read(path)  # one byte more than MAX_BYTES, where it has that
        if len(data) > MAX_BYTES:
            raise FleetError(
                "recipe.too-large", "larger than %d KiB; allowed: as much at most. Shorten it.", (MAX_BYTES // 1024,)
            )
        recipe = _read_yaml(data.decode("utf-8-sig"))
        if not isinstance(recipe, dict):
            raise FleetError(
                "recipe.not-a-mapping",
                "the file holds %s; allowed: a mapping with %s. Write it as recipes/%s is written.",
                ("nothing" if recipe is None else show(recipe), *what),
            )
        return clean(recipe, "the recipe")
    except OSError as error:
        raise FleetError(
            "recipe.unreadable",
            "%s cannot be read: %s. Make it a file that the user who runs Ansible may read.",
            (label, error.strerror),
        ) from error
    except UnicodeDecodeError as error:
        raise FleetError(
            "recipe.not-utf-8", "%s is not UTF-8 (byte %d). Save it as UTF-8.", (label, error.start)
        ) from error
    except FleetError as error:
        raise error.within(label + ": ") from error


def _with_probes(recipe, folder):
    """The recipe with the requests of probes/NAME.yml, of its folder or the collection, where `probes` is that name."""
    name = recipe.get("probes")
    if not isinstance(name, str):
        return recipe
    folders = [os.path.join(one, PROBES) for one in (folder, OWN_RECIPES)]
    known = available(folders)
    if name not in known:
        close = close_to(name, known)
        raise FleetError(
            "recipe.probes-unknown",
            "'probes' is %s, but there is no such file of requests%s; allowed: a list of requests, or one of %s. "
            "Looked in: %s.",
            (show(name), "; did you mean '%s'?" % close if close else "", ", ".join(known), ", ".join(folders)),
        )
    found = next(path for path in (os.path.join(one, name + ".yml") for one in folders) if seen_files.is_file(path))
    return {**recipe, "probes": _mapping_of(found, ("the key probes", "probes/*.yml")).get("probes", [])}


@functools.cache
def _load(path, _stamp):
    label = label_of(path)
    recipe = _mapping_of(path, ("the keys " + ", ".join(recipe_schema()["required"]), "cpu-tiny.yml"))
    try:
        recipe = _with_probes(recipe, os.path.dirname(path))
    except FleetError as error:
        raise error.within(label + ": ") from error
    found = all_problems(recipe, in_file=True)
    if recipe.get("name") != os.path.basename(path)[:-4] and not any(where == ["name"] for where, _text in found):
        words = "'name' is %s; allowed: the file's own name, %s"
        found = [*found, (["name"], words % (show(recipe.get("name")), os.path.basename(path)[:-4]))]
    if found:
        raise FleetError.together(FleetError("recipe.key-invalid", "%s: %s.", (label, text)) for _path, text in found)
    for name in recipe.get("overlays", ()):
        _checked(_with_overlays(recipe, path, [name]), label, "overlays.%s: " % name)
    return recipe


def _checked(recipe, label, where):
    """A recipe, FleetError with all that is wrong with it."""
    found = all_problems(recipe, in_file=True)
    if found:
        lines = ["%s: %s%s." % (label, where, text) for _path, text in found]
        raise FleetError.together(FleetError("recipe.key-invalid", line) for line in lines)
    return recipe


def _with_overlays(recipe, path, names):
    """The recipe with its own overlays of these names merged over it, in this order."""
    known = recipe.get("overlays") or {}
    label, result = label_of(path), recipe
    for name in names:
        if name not in known:
            close = close_to(name, known)
            raise FleetError(
                "recipe.overlay-unknown",
                "fleet_overlay is %s, but %s has no such overlay%s; allowed: %s. Use one of these, or remove it.",
                (show(name), label, "; did you mean '%s'?" % close if close else "", ", ".join(known) or "none"),
            )
        fixed = sorted(set(known[name]) & set(FIXED))
        if fixed:
            raise FleetError(
                "recipe.overlay-key",
                "%s: overlays.%s has the key '%s', which is the recipe's own; remove it there.",
                (label, name, fixed[0]),
            )
        result = overrides.apply(result, known[name])
    return _with_probes(result, os.path.dirname(path))


def label_of(path):
    """How a recipe file is named in messages: the collection's own as recipes/x.yml, others by their whole path."""
    if os.path.dirname(os.path.abspath(path)) == OWN_RECIPES:
        return "recipes/" + os.path.basename(path)
    return path


def load_recipe(path):
    """The recipe in ``path``, validated (FleetError). Read once while the file does not change; read-only."""
    try:
        stamp = os.stat(path).st_mtime_ns
    except OSError:
        stamp = 0
    return _load(path, stamp)


_resolved = {}


def resolve_recipe(path, layers, overlays=(), wanted=None, accelerator=None):
    """The recipe in ``path`` with its overlays of these names, the measured setting that is nearest to ``wanted``
    (fleet_tuning) on an accelerator, and the overrides ``layers`` [(variable, mapping)] merged over it, in this order,
    and validated again. `overlays` has the names that were taken then, `tuning` says which setting.

    Memoised by the content of all, so that a hundred equal hosts cost one validation. FleetError names the variable
    where an override is at fault, the file where the recipe is.
    """
    recipe, label = load_recipe(path), label_of(path)
    key = (path, os.stat(path).st_mtime_ns, canonical([layers, list(overlays), wanted, accelerator]))
    if key not in _resolved:
        base, taken = recipe, {"overlays": list(overlays)} if overlays else {}
        if overlays:
            base = _checked(_with_overlays(recipe, path, overlays), label, "with fleet_overlay: ")
        result = _resolve(base, path, layers)
        if wanted is not None:
            table = _table_of(result, path)
            point = tuning.nearest(table, wanted, accelerator, tuning.devices_of(result))
            base = _checked(overrides.apply(base, tuning.override_of(point, wanted)), label, "with fleet_tuning: ")
            result = _resolve(base, path, layers)
            taken["tuning"] = tuning.text_of(point, wanted, table["source"])
        result = {key: value for key, value in result.items() if key not in OFFERED}
        _resolved[key] = {**with_images(result, os.path.dirname(path)), **taken}
    return _resolved[key]


def _table_of(recipe, path):
    """The recipe's table of measured settings."""
    if not recipe.get("tuning"):
        own = [name for name in available([OWN_RECIPES]) if load_recipe(find_recipe(name, [])).get("tuning")]
        raise FleetError(
            "recipe.tuning-none",
            "fleet_tuning is set, but %s has no table of measured settings (its key 'tuning'); these have: %s. Choose "
            "one of them, or remove fleet_tuning.",
            (label_of(path), ", ".join(own)),
        )
    found = tuning.path_of(recipe["tuning"], os.path.dirname(path))
    if not seen_files.is_file(found):
        found = tuning.path_of(recipe["tuning"], OWN_RECIPES)
    return tuning.check_table(_mapping_of(found, ("source and sets", "tuning/*.yml")), found)


def _resolve(recipe, path, layers):
    merged, origin = overrides.combine(layers)
    if not merged:
        return recipe
    names = ", ".join(name for name, layer in layers if layer)
    try:
        overrides.check_nulls(recipe, merged)
        result = _with_probes(overrides.apply(recipe, coerce(merged)), os.path.dirname(path))
    except FleetError as error:
        raise error.within(names + ": ") from error
    result = coerce(result)
    written = functools.partial(_as_written, recipe, merged)
    found = all_problems(result, lambda where: path_text(written(where)))
    lines = ["%s: %s." % (_blame(written(where), origin, names), text) for where, text in found]
    if any(result.get(key) != recipe.get(key) for key in FIXED):
        lines = [
            "%s: 'name', 'schema', 'overlays' and 'tuning' of a recipe cannot be overridden; copy %s instead."
            % (names, label_of(path)),
            *(line for line, (where, _text) in zip(lines, found) if where not in [[key] for key in FIXED]),
        ]
    if lines:
        raise FleetError.together(FleetError("recipe.key-invalid", line) for line in lines)
    return result


def _as_written(recipe, merged, where):
    """``where`` as an override has it: groups of servers by their names instead of their numbers."""
    if len(where) > 1 and where[0] == "servers" and isinstance(merged.get("servers"), dict):
        groups = [
            name for name in map(overrides.group_name, recipe["servers"]) if merged["servers"].get(name, 0) is not None
        ]
        if isinstance(where[1], int) and where[1] < len(groups):
            return ["servers", groups[where[1]], *where[2:]]
    return where


def _blame(where, origin, names):
    """The variable that set what is at ``where``; all override variables where that is not known."""
    keys = tuple(str(part) for part in where if not isinstance(part, int))
    best = [name for path, name in origin.items() if path[: len(keys)] == keys or keys[: len(path)] == path]
    return ", ".join(sorted(set(best))) or names


def images_of(folder):
    """{key: {"image", "digest"}} that recipes of a folder may name: the collection's, then those of its images.yml.

    Without a digest where none is known.
    """
    found = {}
    for path in dict.fromkeys(os.path.join(one, IMAGES) for one in (OWN_RECIPES, folder)):
        if not seen_files.exists(path):
            continue
        content = _mapping_of(path, ("images", IMAGES))
        for key, value in content.items():
            if not IMAGE_KEY.fullmatch(key) or not isinstance(value, dict) or not _is_image(value):
                raise FleetError(
                    "recipe.images-invalid",
                    "%s: '%s' is %s; allowed: a key of a-z, 0-9, . and -, with {image: REGISTRY/NAME:TAG, digest: "
                    "sha256: and 64 characters of 0-9 and a-f, version: of what is in it}; digest and version may be "
                    "left out.",
                    (label_of(path), key, show(value)),
                )
        found.update(content)
    return found


def _is_image(value):
    digest = value.get("digest")
    pinned = digest is None or (isinstance(digest, str) and DIGEST.fullmatch(digest))
    return {"image"} <= set(value) <= {"image", "digest", "version"} and pinned


def with_images(recipe, folder):
    """The recipe with the images that it names by key, each with its digest."""
    keys = None
    instances = {name: dict(own or {}) for name, own in (recipe.get("instances") or {}).items()}
    result = {**recipe, "servers": [dict(group) for group in recipe["servers"]], "instances": instances}
    for layer in (result, *result["servers"], *result["instances"].values()):
        image = (layer.get("container") or {}).get("image")
        if not image or not IMAGE_KEY.fullmatch(image):
            continue
        keys = images_of(folder) if keys is None else keys
        if image not in keys:
            close = close_to(image, keys)
            raise FleetError(
                "recipe.image-unknown",
                "container.image is %s%s; allowed: an image with its registry, REGISTRY/NAME:TAG, or a key of %s: %s.",
                (show(image), "; did you mean %s?" % close if close else "", IMAGES, ", ".join(sorted(keys)) or "none"),
            )
        # a site that has looked the digest up says so without a map of its own
        layer["container"] = {**keys[image], **layer["container"], "image": keys[image]["image"]}
    return result if keys is not None else recipe


__all__ = ["available", "find_recipe", "label_of", "load_recipe", "path_text", "resolve_recipe"]
