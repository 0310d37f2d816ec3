"""Runs a plain function: ``NAME(parameters, task)``, name -> float32 array and a dict in, the same arrays out."""

import round_task


def main():
    task = round_task.task()
    task.finish(task.app()(task.before(), task.settings))


if __name__ == "__main__":
    main()
