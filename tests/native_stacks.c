/* Writes the native stack of a thread that dies of a signal; tests/sitecustomize.py loads it. */
#include <execinfo.h>
#include <signal.h>

static int file;

static void write_stack(int number) {
    void *frames[100];
    backtrace_symbols_fd(frames, backtrace(frames, 100), file);
    signal(number, SIG_DFL);
    raise(number);
}

void write_native_stacks(int descriptor) {
    int numbers[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    void *first[1];
    backtrace(first, 1); /* which loads what it needs */
    file = descriptor;
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
        signal(numbers[i], write_stack);
}
