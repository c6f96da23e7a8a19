"""Run ``horovodrun``, without a question that the harness has asked once for all launches.

To learn whether Horovod was built with Gloo, every ``horovodrun`` imports TensorFlow in a process
of its own, which takes longer than many of the launches.
"""

from horovod.runner import launch

launch.gloo_built = lambda verbose=False: True

if __name__ == "__main__":
    launch.run_commandline()
