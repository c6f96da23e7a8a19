/* How often a program goes over some arrays, counted by the memory protection of the processor.
 *
 * All pages of a watched array are taken away.  The first access to one traps: it is counted, and the page is given back, until
 * WINDOW other pages of the same array have been touched after it; then it is taken away again.  So whatever goes over an array
 * traps once a page, however it is written, and what comes back to a page while it is still in a cache does not.
 * A page is first given back for reading only, if it was read, so that writes are told from reads.
 *
 * x86-64 Linux; any number of threads.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { MOST_ARRAYS = 8, WINDOW = 64, PAGE = 4096, WRITE_FAULT = 2 };
enum { TAKEN, READABLE, WRITABLE };

struct array {
    uintptr_t start;
    size_t pages;
    unsigned char *state;
    size_t recent[WINDOW];
    size_t given;
    uint64_t reads, writes;
};

static struct array arrays[MOST_ARRAYS];
static int count;
static struct sigaction previous;
static atomic_flag busy = ATOMIC_FLAG_INIT;

static void set(struct array *array, size_t page, int state)
{
    static const int rights[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};
    mprotect((void *)(array->start + page * PAGE), PAGE, rights[state]);
    array->state[page] = state;
}

static void give(struct array *array, size_t page, int is_write)
{
    if (array->state[page] == WRITABLE || (array->state[page] == READABLE && !is_write))
        return; /* another thread was faster */
    if (array->state[page] == TAKEN) {
        size_t slot = array->given++ % WINDOW;
        if (array->given > WINDOW)
            set(array, array->recent[slot], TAKEN);
        array->recent[slot] = page;
    }
    set(array, page, is_write ? WRITABLE : READABLE);
    *(is_write ? &array->writes : &array->reads) += 1;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    uintptr_t address = (uintptr_t)info->si_addr;
    int is_write = (((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & WRITE_FAULT) != 0;
    for (int i = 0; i < count; i++) {
        struct array *array = &arrays[i];
        if (address - array->start >= array->pages * PAGE)
            continue;
        while (atomic_flag_test_and_set(&busy))
            ;
        give(array, (address - array->start) / PAGE, is_write);
        atomic_flag_clear(&busy);
        return;
    }
    sigaction(signal, &previous, NULL); /* not ours: a real fault */
}

/* The whole pages of an array; its number, or -1 if there are too many arrays. */
int trap_watch(uintptr_t start, size_t bytes)
{
    uintptr_t first = (start + PAGE - 1) / PAGE * PAGE, last = (start + bytes) / PAGE * PAGE;
    if (count == MOST_ARRAYS)
        return -1;
    arrays[count] = (struct array){.start = first, .pages = (last - first) / PAGE};
    arrays[count].state = malloc(arrays[count].pages);
    return count++;
}

/* Watch nothing any more. */
void trap_forget(void)
{
    while (count > 0)
        free(arrays[--count].state);
}

/* Count from now on, from 0. */
int trap_arm(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    for (int i = 0; i < count; i++) {
        arrays[i].given = arrays[i].reads = arrays[i].writes = 0;
        for (size_t page = 0; page < arrays[i].pages; page++)
            arrays[i].state[page] = TAKEN;
    }
    if (sigaction(SIGSEGV, &action, &previous))
        return -1;
    for (int i = 0; i < count; i++)
        if (mprotect((void *)arrays[i].start, arrays[i].pages * PAGE, PROT_NONE))
            return -1;
    return 0;
}

/* Give everything back. */
void trap_disarm(void)
{
    for (int i = 0; i < count; i++)
        mprotect((void *)arrays[i].start, arrays[i].pages * PAGE, PROT_READ | PROT_WRITE);
    sigaction(SIGSEGV, &previous, NULL);
}

double trap_reads(int i) { return (double)arrays[i].reads / arrays[i].pages; }
double trap_writes(int i) { return (double)arrays[i].writes / arrays[i].pages; }
