"""Processes of a play start from what the fork server imported, not from the program that plays."""

import subprocess
import sys
from textwrap import dedent

PROGRAM = """
    import os
    from pathlib import Path

    with open(Path(__file__).with_suffix(".imports"), "a") as seen:
        print(os.getpid(), file=seen)

    if __name__ == "__main__":
        import sys
        from scenarios.worlds.forking import fork_server

        context = fork_server.{context}()
        with fork_server.without_main():
            child = context.Process(target=os.getpid)
            child.start()
        child.join()
        fork_server.stop()
        assert sys.modules["__main__"].__file__ == __file__
        sys.exit(child.exitcode)
"""


def imports_of(folder, context: str) -> int:
    program = folder / f"{context}.py"
    program.write_text(dedent(PROGRAM.format(context=context)))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return len(program.with_suffix(".imports").read_text().splitlines())


def test_no_process_of_a_play_imports_the_program_again(tmp_path):
    """The command line takes longer to import than a play to be played."""
    assert imports_of(tmp_path, "spawn_context") == 1
