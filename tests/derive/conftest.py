from integration.conftest import cluster, pytest_runtest_makereport  # noqa: F401
