"""Lockstep's build rules: every BUILD file goes through these, so flags and policy live here and in .bazelrc only."""

_COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-missing-field-initializers",
    # GCC 12 sees overflows in std::vector and std::string that are not there (gcc.gnu.org/PR105329, PR107852).
    "-Wno-array-bounds",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
    # Clang has not heard of some of these.
    "-Wno-unknown-warning-option",
]

def ls_cc_library(name, deps = [], copts = [], **kwargs):
    native.cc_library(
        name = name,
        copts = _COPTS + copts,
        linkstatic = True,  # or Bazel links a shared library of each, too
        deps = deps,
        **kwargs
    )

def ls_cc_binary(name, deps = [], copts = [], **kwargs):
    native.cc_binary(
        name = name,
        copts = _COPTS + copts,
        deps = deps,
        **kwargs
    )

def ls_cc_test(name, deps = [], copts = [], size = "medium", **kwargs):
    """A Catch2 test; its cases are reported one by one to Bazel's test.xml."""
    native.cc_test(
        name = name,
        size = size,
        copts = _COPTS + copts,
        deps = deps + ["//bazel:catch2_main"],
        **kwargs
    )

def ls_cc_fuzz_target(name, deps = [], data = []):
    """targets/<name>.cc of tests/fuzz as <name>_fuzzer, a libFuzzer program for builds with --config=fuzz, and
    <name>_test, which replays its seeds and its corpus in any build."""
    corpus = "corpus/%s.txt" % name
    defines = ['LOCKSTEP_FUZZ_CORPUS=\\"tests/fuzz/%s\\"' % corpus]
    srcs = ["targets/%s.cc" % name]
    native.cc_binary(
        name = name + "_fuzzer",
        testonly = True,
        srcs = srcs + ["fuzzer_main.cc"],
        copts = _COPTS,
        linkopts = ["-fsanitize=fuzzer"],
        local_defines = defines,
        tags = ["manual"],
        deps = deps + [":fuzz"],
    )
    ls_cc_test(
        name = name + "_test",
        srcs = srcs + ["replay_test.cc"],
        data = data + [corpus],
        local_defines = defines,
        deps = deps + [":fuzz"],
    )

def ls_cuda_library(name, srcs, hdrs, **kwargs):
    """Kernels of the GPU, compiled by nvcc for every architecture that it knows. Only for builds with --config=cuda.

    `srcs` include headers of their own and CUDA's; targets that use `hdrs` find CUDA's too."""
    archive = "lib%s.a" % name
    native.genrule(
        name = name + "_nvcc",
        srcs = srcs + hdrs,
        outs = [archive],
        cmd = " ".join([
            "$(location @cuda//:nvcc) --lib -std=c++20 -O3 -arch=all-major -Werror all-warnings",
            "-Xcompiler -fPIC,-Wall,-Wextra -I. -o $@",
        ] + ["$(location %s)" % src for src in srcs if src.endswith(".cu")]),
        tags = ["manual"],
        tools = ["@cuda//:nvcc"],
    )
    native.cc_library(
        name = name,
        srcs = [archive],
        hdrs = hdrs,
        tags = ["manual"],
        deps = ["@cuda"],
        **kwargs
    )

def ls_cc_plugin(name, deps = [], exported_symbols = None, **kwargs):
    """A shared library for another program's process: all but libc and libgcc_s inside, only `exported_symbols` visible."""
    native.cc_binary(
        name = name,
        copts = _COPTS,
        linkshared = True,
        linkstatic = True,
        linkopts = [
            # Bazel's own -lstdc++ comes after these and finds nothing left to do.
            "-Wl,--as-needed",
            "-l:libstdc++.a",
            # libgcc_s is asked for by its .so: Debian's libgcc_eh.a needs a C library of 2.35.
            "-Wl,--exclude-libs,ALL",
            "-Wl,-z,defs",
            "-Wl,--version-script=$(location %s)" % exported_symbols,
        ],
        deps = deps + [exported_symbols],
        **kwargs
    )

def ls_grpc_library(name, srcs, deps = [], **kwargs):
    """C++ messages and gRPC stubs of `srcs`, all in one directory under proto/."""
    outs = []
    for src in srcs:
        base = src[:-len(".proto")]
        outs += [base + suffix for suffix in [".pb.h", ".pb.cc", ".grpc.pb.h", ".grpc.pb.cc"]]
    native.genrule(
        name = name + "_gen",
        srcs = srcs,
        outs = outs,
        cmd = " ".join([
            "protoc -I. --cpp_out=$(BINDIR) --grpc_out=$(BINDIR)",
            "--plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) $(SRCS)",
        ]),
    )
    native.cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        deps = deps + ["@grpc", "@protobuf"],
        **kwargs
    )
