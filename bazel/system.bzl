"""Repositories that wrap what Debian installed, each once."""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "{name}",
    defines = {defines},
    linkopts = {linkopts},
)
"""

def _system_library_impl(ctx):
    linkopts = []
    defines = ctx.attr.defines
    hint = "install it with: apt-get install " + ctx.attr.debian_package
    if ctx.attr.pkg_config:
        libs = ctx.execute(["pkg-config", "--libs", ctx.attr.pkg_config])
        if libs.return_code != 0:
            fail("%s: pkg-config does not know %s; %s" % (ctx.name, ctx.attr.pkg_config, hint))
        linkopts = [word for word in libs.stdout.strip().split(" ") if word]
        cflags = ctx.execute(["pkg-config", "--cflags-only-other", ctx.attr.pkg_config]).stdout
        defines = defines + [word[2:] for word in cflags.strip().split(" ") if word.startswith("-D")]

        # pkg-config repeats libraries by the hundred; the last mention is the one that orders the link.
        unique = []
        for word in reversed(linkopts):
            if word not in unique:
                unique.append(word)
        linkopts = ["-Wl,--as-needed"] + [word for word in reversed(unique)]
    elif not ctx.path("/usr/include/" + ctx.attr.header).exists:
        fail("%s: /usr/include/%s is missing; %s" % (ctx.name, ctx.attr.header, hint))
    ctx.file("BUILD", _BUILD.format(name = ctx.name, defines = repr(defines), linkopts = repr(linkopts)))

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "debian_package": attr.string(mandatory = True),
        "defines": attr.string_list(),
        "header": attr.string(),
        "pkg_config": attr.string(),
    },
    configure = True,
    local = True,
)

_TOOLKIT_BUILD = """
package(default_visibility = ["//visibility:public"])

# Without its libraries: for what stands in for them.
cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include"],
)

cc_library(
    name = "{name}",
    linkopts = {linkopts},
    deps = [":headers"],
)

exports_files({programs})
"""

_PROGRAM = """#!/bin/sh
exec {path} "$@"
"""

# Builds nothing, and says why when it is asked for: queries pass over it, and so do builds that do not need it.
_MISSING_BUILD = """
package(default_visibility = ["//visibility:public"])

genrule(
    name = "missing",
    outs = ["missing.h"],
    cmd = "echo '{hint}' >&2; exit 1",
)

cc_library(
    name = "{name}",
    hdrs = ["missing.h"],
    target_compatible_with = {compatible},
)

[alias(
    name = program,
    actual = ":missing",
) for program in ["headers"] + {programs}]
"""

# Where libraries lie below a prefix: NVIDIA's installers, its packages of a distribution, and PyPI's each have their own.
_LIBRARY_FOLDERS = ["lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib"]

def _toolkit_library_impl(ctx):
    prefix = ctx.os.environ.get(ctx.attr.prefix_variable, ctx.attr.prefix)
    if not ctx.path(prefix + "/include/" + ctx.attr.header).exists:
        hint = "%s: %s/include/%s is missing; set %s" % (ctx.name, prefix, ctx.attr.header, ctx.attr.prefix_variable)
        compatible = ["@platforms//:incompatible"] if ctx.attr.optional else []
        ctx.file("BUILD", _MISSING_BUILD.format(
            name = ctx.name,
            hint = hint,
            compatible = repr(compatible),
            programs = repr(ctx.attr.programs),
        ))
        return
    ctx.symlink(prefix + "/include", "include")

    # Not links: these programs look for their parts beside themselves.
    for program in ctx.attr.programs:
        ctx.file(program, _PROGRAM.format(path = prefix + "/bin/" + program), executable = True)
    libraries = [prefix + "/" + folder for folder in _LIBRARY_FOLDERS if ctx.path(prefix + "/" + folder).exists]
    linkopts = ["-L" + folder for folder in libraries] + ctx.attr.linkopts
    build = _TOOLKIT_BUILD.format(name = ctx.name, linkopts = repr(linkopts), programs = repr(ctx.attr.programs))
    ctx.file("BUILD", build)

# What a vendor installs below a prefix of its own. Only targets built with --config=cuda use these.
toolkit_library = repository_rule(
    implementation = _toolkit_library_impl,
    attrs = {
        "header": attr.string(mandatory = True),
        "linkopts": attr.string_list(),
        # Where it is missing, wildcards pass over what needs it, also with --config=cuda.
        "optional": attr.bool(),
        "prefix": attr.string(mandatory = True),
        "prefix_variable": attr.string(mandatory = True),
        "programs": attr.string_list(),
    },
    environ = ["CUDA_HOME", "NCCL_HOME"],
    configure = True,
    local = True,
)
