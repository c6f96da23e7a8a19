"""Runs ``horovodrun`` without its check for Gloo, which the harness makes once for all launches.

For this check, every ``horovodrun`` imports TensorFlow in a separate process, which takes longer
than many of the launches.
"""

from horovod.runner import launch

launch.gloo_built = lambda verbose=False: True

if __name__ == "__main__":
    launch.run_commandline()
