# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes: searched, parsed, merged with the files that they extend, validated, and merged with the settings of an
inventory.

A chain is a tuple ((path, time of change), …) of the files of a recipe: its own file, the file that it extends, and so
on.
"""

from __future__ import annotations

import functools
import json
import os
import re

import yaml

from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.host.server_spec import canonical
from .. import seen_files
from ..base.checks import clean, invalid
from ..base.words import meant, path_text, show, visible
from ..models import family_of, problem_of
from ..models.base import read as read_config
from . import overrides, tuning
from .overrides import group_name
from .schema import COLLECTION, all_problems, is_image

SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
OWN_RECIPES = os.path.join(COLLECTION, "recipes")
IMAGES, MODELS = "images.yml", "models"
FAMILIES = "families"  # folder in a folder of recipes, with files that can only be extended
IMAGE_KEY = re.compile(r"[a-z0-9][a-z0-9.-]*")  # unlike a key, an image with its registry or tag contains / or :
OFFERED = ("overlays", "tuning")  # keys of a recipe that an inventory selects from
FIXED = ("name", "schema", "extends", *OFFERED)
# Numbers that YAML 1.1 parses unexpectedly: 010 is 8, 1:30 is 90.
UNLIKE = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")


class _Loader(SafeLoader):
    """Strict YAML: duplicate keys, keys that are not strings and ambiguous numbers are errors.

    Aliases and merge keys (<<) have their usual meaning.
    """

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _value in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or not key.tag.endswith((":str", ":merge")):
                raise _error(key, "has a key that is not a string; put %s into quotes", key.value)
            if key.value in seen:
                raise _error(key, "has the key %s twice", key.value)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_scalar(self, node):
        if node.tag.endswith((":int", ":float")) and UNLIKE.fullmatch(node.value):
            raise _error(node, "has %s, which YAML reads as another number; put it into quotes", node.value)
        return super().construct_scalar(node)


def _error(node, text, value):
    return ValueError("line %d %s" % (node.start_mark.line + 1, text % show(value)))


def unknown(what, name, known, folders=()):
    """Return the FleetError of a name that does not exist. what: the variable or key with the name."""
    places = " (in %s)" % ", ".join(folders) if folders else ""
    allowed = ", ".join(known) or "none"
    return FleetError("recipe.name-unknown", what, show(name), meant(str(name), known), allowed, places)


def available(paths):
    """Return the names of the recipes in ``paths``, sorted."""
    names = set()
    for folder in paths:
        names.update(name[:-4] for name in seen_files.files_in(folder) if name.endswith(".yml") and name != IMAGES)
    return sorted(names)


def find_recipe(name, paths):
    """Return the path of the recipe ``name`` in the first of ``paths`` that contains it, else in the collection.
    Raises FleetError."""
    folders = [*paths, OWN_RECIPES]
    path = _file(name, folders)
    if path is None and _file(name, [os.path.join(folder, FAMILIES) for folder in folders]):
        raise FleetError("recipe.family-not-deployable", name, ", ".join(available(folders)))
    if path is None:
        raise unknown("fleet_recipe", name, available(folders), folders)
    return path


def _file(name, folders):
    """Return the path of NAME.yml in the first of the folders that contains it, None if none does."""
    if not isinstance(name, str) or os.path.basename(name) != name or name + ".yml" in (".yml", IMAGES):
        return None
    paths = (os.path.join(folder, name + ".yml") for folder in folders)
    return next((path for path in paths if seen_files.is_file(path)), None)


def chain_of(path, folders=()):
    """Return the chain of the recipe in ``path``.

    folders: where `extends` of a site's file is searched before the collection, by default the file's folder. Files of
    the collection extend only files of the collection. Raises FleetError.
    """
    folders, chain = folders or (os.path.dirname(path),), []
    while path:
        try:
            chain.append((path, os.stat(path).st_mtime_ns))
        except OSError:
            chain.append((path, 0))  # reading the file reports the error
        path = _extended(chain, folders)
    return tuple(chain)


def _extended(chain, folders):
    """Return the path of the file that the last file of a chain extends, None if it extends none."""
    path, content = chain[-1][0], _content(*chain[-1])
    if "extends" not in content:
        return None
    name, own = content["extends"], os.path.abspath(path).startswith(OWN_RECIPES + os.sep)
    folders = [OWN_RECIPES] if own else [*folders, OWN_RECIPES]
    folders = [place for folder in folders for place in (folder, os.path.join(folder, FAMILIES))]
    found = _file(name, folders)
    paths = [one for one, _stamp in chain]
    if found in paths:
        cycle = [*paths[paths.index(found) :], found]
        raise FleetError("recipe.extends-cycle", label_of(path), ", ".join(map(label_of, cycle)))
    if found is None:
        error = unknown("'extends'", name, available(folders), folders)
        if not isinstance(name, str):
            error = invalid("'extends'", name, "the name of a recipe or family")
        raise error.within(label_of(path) + ": ")
    return found


@functools.cache
def _content(path, _stamp):
    """Return the mapping in a file of a chain. It must not be changed."""
    return _mapping_of(path)


def _merged(chain):
    """Return the recipe of a chain: each file merged over the file that it extends. `name` is not inherited."""
    recipe = {}
    for path, stamp in reversed(chain):
        content = {key: value for key, value in _content(path, stamp).items() if key != "extends"}
        try:
            overrides.check_nulls(
                recipe, {key: value for key, value in content.items() if key not in ("overlays", "tune")}
            )
            recipe = overrides.extend({key: value for key, value in recipe.items() if key != "name"}, content)
        except FleetError as error:
            raise error.within(label_of(path) + ": ") from error
    return recipe


def _folders(chain):
    """Return the folders of a chain's recipes, in which their images are searched, and the collection's."""
    found = [os.path.dirname(path) for path, _stamp in chain]
    found[1:] = [os.path.dirname(one) if os.path.basename(one) == FAMILIES else one for one in found[1:]]
    return list(dict.fromkeys([*found, OWN_RECIPES]))


def _label_with(chain, where):
    """Return the label of the file of a chain that has the key ``where``, or the longest part of it."""
    for end in range(len(where), 0, -1):
        for path, stamp in chain:
            if _contains(_content(path, stamp), where[:end]):
                return label_of(path)
    return label_of(chain[0][0])


def _contains(content, where):
    for key in where:
        if isinstance(content, list) and isinstance(key, str):
            content = {str(group_name(item)): item for item in content if isinstance(item, dict)}
        if not (key in content if isinstance(content, dict) else isinstance(content, list) and key < len(content)):
            return False
        content = content[key]
    return True


def _by_name(recipe, where):
    """Return ``where`` with the name of a server group instead of its number, as in a file that changes the group."""
    groups = recipe.get("servers")
    if where[:1] == ["servers"] and len(where) > 1 and isinstance(groups, list) and isinstance(where[1], int):
        name = isinstance(groups[where[1]], dict) and group_name(groups[where[1]])
        return ["servers", name, *where[2:]] if isinstance(name, str) else where
    return where


def _mapping_of(path):
    """Return the mapping in a YAML file. Raises FleetError."""
    label = label_of(path)
    try:
        content = yaml.load(seen_files.read(path).decode("utf-8-sig"), Loader=_Loader)
        if not isinstance(content, dict):
            raise ValueError("it contains %s and no mapping" % ("nothing" if content is None else show(content)))
    except OSError as error:
        raise FleetError("recipe.file-invalid", label, error.strerror + ".") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, AttributeError) as error:
        text = visible(" ".join(str(error).split()).rstrip(".")) + "."
        raise FleetError("recipe.file-invalid", label, text) from error
    try:
        return clean(content, "the recipe")
    except FleetError as error:
        raise error.within(label + ": ") from error


def _with_configs(recipe, chain):
    """Return the recipe with the content of its models' config.json, if their family needs it: `config` is the path of
    such a file or NAME of models/NAME.json, by default the last part of the repository. Raises FleetError."""
    groups = [dict(group) for group in recipe["servers"]]
    result = {**recipe, "servers": groups}
    for place in (result, *groups):
        model = {**recipe["model"], **(place.get("model") or {})}
        if not place.get("model") or family_of({"model": model}).models:
            continue
        given = place["model"].get("config")
        name = given or model["repo"].rpartition("/")[2]
        paths = (
            [name] if name.startswith("/") else [os.path.join(one, MODELS, name + ".json") for one in _folders(chain)]
        )
        path = next(filter(seen_files.is_file, paths), None)
        place["model"] = {**place["model"], "config": None}
        if path is None and given:
            raise unknown("model.config", given, [], paths)
        if path:
            place["model"]["config"] = config_of({"model": model}, path)
    return result


def config_of(recipe, path):
    """Return the keys of a config.json that a plan depends on. Raises FleetError if it contradicts the recipe's
    model."""
    try:
        config = json.loads(seen_files.read(path))
    except (OSError, ValueError, RecursionError) as error:
        raise FleetError("recipe.file-invalid", path, "%s." % error) from error
    problem = problem_of(recipe, config) if isinstance(config, dict) else "it contains no mapping"
    if problem:
        raise FleetError("recipe.model-config", recipe["model"]["repo"], label_of(path), problem)
    return read_config(config)


@functools.cache
def _load(chain):
    recipe, name = _merged(chain), os.path.basename(chain[0][0])[:-4]
    named = {} if recipe.get("name") == name else {"name": name}
    _checked(recipe, chain, "", named)
    for name in recipe.get("overlays", ()):
        _checked(_with_overlays(recipe, chain, [name]), chain, "overlays.%s: " % name, at=("overlays", name))
    return recipe


def _checked(recipe, chain, before, named=(), at=()):
    """Return a recipe. Raises FleetError with all its errors.

    before: start of messages. named: {"name": that of the file} if its `name` differs. at: the key of a part of the
    recipe, if an error can be in it.
    """
    found = all_problems(recipe, in_file=True)
    if named and "name" in recipe and not any(path == ["name"] for path, _text in found):
        found += [(["name"], "'name' is %s; allowed: the file's own name, %s" % (show(recipe["name"]), named["name"]))]
    lines = []
    for where, text in found:
        key = _by_name(recipe, where)
        inside = at and any(_contains(_content(*file), [*at, *key]) for file in chain)
        lines.append("%s: %s%s." % (_label_with(chain, [*at, *key] if inside else key or at), before, text))
    if lines:
        raise FleetError.together(map(_invalid, lines))
    return recipe


def _invalid(line):
    """Return the FleetError of a key. The line contains the remedy."""
    return FleetError("recipe.key-invalid", line)


def _with_overlays(recipe, chain, names):
    """Return the recipe with its overlays of these names merged over it, in this order."""
    known, result = recipe.get("overlays") or {}, recipe
    for name in names:
        if name not in known:
            raise unknown("fleet_overlay", name, list(known))
        fixed = sorted(set(known[name]) & set(FIXED))
        if fixed:
            label = _label_with(chain, ["overlays", name, fixed[0]])
            raise _invalid("%s: overlays.%s has the key '%s'; remove it there." % (label, name, fixed[0]))
        result = overrides.apply(result, known[name])
    return result


def label_of(path):
    """Return the name of a recipe file in messages:
    recipes/x.yml for the collection's own files, the full path for others."""
    full = os.path.abspath(path)
    return os.path.relpath(full, COLLECTION) if full.startswith(OWN_RECIPES + os.sep) else path


def load_recipe(path, folders=()):
    """Return the validated recipe in ``path``, merged with what it extends. It is made once while its files are
    unchanged, and must not be changed. folders: of chain_of(). Raises FleetError."""
    return _load(chain_of(path, folders))


_resolved = {}


def resolve_recipe(path, layers, overlays=(), wanted=None, accelerator=None, folders=()):
    """Return the recipe in ``path``, merged with its overlays of these names, with the measured setting nearest to
    ``wanted`` (fleet_tuning) on an accelerator, and with the overrides ``layers`` [(variable, mapping)], in this order.

    The result is validated again. Its `overlays` contains the names of the overlays, its `tuning` describes the
    measured setting. Results are cached by all inputs, so that a hundred equal hosts require one validation. folders:
    of chain_of(). Raises FleetError, which names the variable for an error in an override, and the file for an error
    in the recipe.
    """
    chain = chain_of(path, folders)
    recipe, key = _load(chain), (chain, canonical([layers, list(overlays), wanted, accelerator]))
    if key not in _resolved:
        base, taken = recipe, {"overlays": list(overlays)} if overlays else {}
        if overlays:
            base = _checked(_with_overlays(recipe, chain, overlays), chain, "with fleet_overlay: ")
        result = _resolve(base, chain, layers)
        if wanted is not None:
            if not result.get("tuning"):
                own = [name for name in available([OWN_RECIPES]) if load_recipe(find_recipe(name, [])).get("tuning")]
                raise unknown(
                    "fleet_tuning needs a recipe with measured settings, but fleet_recipe", recipe["name"], own
                )
            point = tuning.nearest(result["tuning"], wanted, accelerator, tuning.devices_of(result))
            base = _checked(overrides.apply(base, tuning.override_of(point, wanted)), chain, "with fleet_tuning: ")
            result = _resolve(base, chain, layers)
            taken["tuning"] = tuning.text_of(point, wanted, result["tuning"]["source"])
        result = {key: value for key, value in result.items() if key not in OFFERED}
        result = _with_configs(with_images(result, _folders(chain)), chain)
        _resolved[key] = {**result, **taken}
    return _resolved[key]


def _resolve(recipe, chain, layers):
    merged, origin = overrides.combine(layers)
    if not merged:
        return recipe
    names = ", ".join(name for name, layer in layers if layer)
    try:
        overrides.check_nulls(recipe, merged)
        result = overrides.apply(recipe, merged)
    except FleetError as error:
        raise error.within(names + ": ") from error
    lines = []
    by_name = functools.partial(_by_name, result if isinstance(merged.get("servers"), dict) else {})
    for where, text in all_problems(result, lambda where: path_text(by_name(where))):
        keys = tuple(part for part in by_name(where) if isinstance(part, str))
        lines.append("%s: %s." % (", ".join(overrides.owners(origin, keys)) or names, text))
    for key in FIXED:
        if result.get(key) != recipe.get(key):
            text = "%s: '%s' of a recipe cannot be overridden; write a recipe that extends %s."
            lines.append(text % (names, key, label_of(chain[0][0])))
    if lines:
        raise FleetError.together(map(_invalid, lines))
    return result


def images_of(*folders):
    """Return {key: {"image", "digest"}} for recipes of these folders: the collection's keys, and those of each folder's
    images.yml, of which the first folder takes precedence.

    An image whose digest is not known has no key digest.
    """
    found = {}
    for path in dict.fromkeys(os.path.join(one, IMAGES) for one in (OWN_RECIPES, *reversed(folders))):
        if not seen_files.is_file(path):
            continue
        content = _mapping_of(path)
        for key, value in content.items():
            if not IMAGE_KEY.fullmatch(key) or not is_image(value):
                raise _invalid(
                    "%s: '%s' is %s; allowed: a key of a-z, 0-9, . and -, with {image, digest, version}; digest is "
                    "sha256: and 64 characters of 0-9 and a-f." % (label_of(path), key, show(value))
                )
        found.update(content)
    return found


def with_images(recipe, folders):
    """Return the recipe with the images that it names by key, each with its digest."""
    keys = None
    instances = {name: dict(own or {}) for name, own in (recipe.get("instances") or {}).items()}
    result = {**recipe, "servers": [dict(group) for group in recipe["servers"]], "instances": instances}
    for layer in (result, *result["servers"], *result["instances"].values()):
        image = (layer.get("container") or {}).get("image")
        if not image or not IMAGE_KEY.fullmatch(image):
            continue
        keys = images_of(*folders) if keys is None else keys
        if image not in keys:
            raise unknown("container.image", image, sorted(keys))
        # a site can set a digest without a separate images.yml
        layer["container"] = {**keys[image], **layer["container"], "image": keys[image]["image"]}
    return result if keys is not None else recipe
