from layouts.conftest import (  # noqa: F401
    checkpoints,
    cluster,
    module_cluster,
    one_thread,
    own_cache,
    pytest_runtest_makereport,
    show_daemons_of_the_module,
)
