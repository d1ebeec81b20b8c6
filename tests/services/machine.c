/* Between a program and its libc: the disk and the clock of a machine that does as a test says.
 *
 * Loaded by LD_PRELOAD, see machine.py. A sync is a copy of the file, by its number, which is what
 * a power cut leaves of it; a second link keeps that number from being given to another file. Names
 * are not kept: what was made, renamed or removed stays so. Nothing is asked of the real disk, and
 * of the libc nothing that might allocate memory, which has not begun when the first clock is read.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static volatile struct {
    int64_t clock;      /* seconds that it is ahead */
    int64_t sync_takes; /* microseconds */
    int64_t full;
    int64_t syncs;      /* how many there were */
} *told;
static char folder[PATH_MAX / 2]; /* a program may write over its environment */

__attribute__((constructor)) static void begin(void) {
    char path[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", getenv("TEST_MACHINE"));
    snprintf(path, sizeof path, "%s/told", folder);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (told == MAP_FAILED) abort();
    close(fd);
}

static int copy(int fd, const struct stat *file) {
    char from[64], synced[PATH_MAX], part[PATH_MAX], alive[PATH_MAX];
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    snprintf(synced, sizeof synced, "%s/synced/%ju", folder, (uintmax_t)file->st_ino);
    snprintf(part, sizeof part, "%s/part", folder);
    snprintf(alive, sizeof alive, "%s/alive/%ju", folder, (uintmax_t)file->st_ino);
    if (linkat(AT_FDCWD, from, AT_FDCWD, alive, AT_SYMLINK_FOLLOW) && errno != EEXIST) return -1;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    off_t at = 0;
    while (at < file->st_size && sendfile(out, in, &at, file->st_size - at) > 0) {}
    close(in);
    close(out);
    return at < file->st_size ? -1 : rename(part, synced);
}

int fsync(int fd) {
    struct stat file;
    if (fstat(fd, &file)) return -1;
    if (!S_ISREG(file.st_mode)) return 0;
    if (told->sync_takes) usleep(told->sync_takes);
    int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    flock(lock, LOCK_EX); /* also between processes, and no child is born with it */
    int failed = copy(fd, &file);
    told->syncs++;
    flock(lock, LOCK_UN);
    close(lock);
    return failed;
}

int fdatasync(int fd) { return fsync(fd); }

/* A file that has no holes can be written over; whatever else is written needs room. */
static int is_full(int fd, size_t count, off64_t at) {
    struct stat file;
    if (!told || !told->full || fstat(fd, &file) || !S_ISREG(file.st_mode)) return 0;
    if (at < 0) at = fcntl(fd, F_GETFL) & O_APPEND ? file.st_size : lseek64(fd, 0, SEEK_CUR);
    off64_t end = at + (off64_t)count;
    if (end <= file.st_size && file.st_size <= file.st_blocks * 512) return 0;
    errno = ENOSPC;
    return 1;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    return is_full(fd, count, -1) ? -1 : syscall(SYS_write, fd, bytes, count);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    return is_full(fd, count, at) ? -1 : syscall(SYS_pwrite64, fd, bytes, count, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
    return pwrite64(fd, bytes, count, at);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    size_t size = 0;
    for (int part = 0; part < count; part++) size += parts[part].iov_len;
    return is_full(fd, size, at) ? -1 : syscall(SYS_pwritev, fd, parts, count, at, 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (!failed && told && is_wall) now->tv_sec += told->clock;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
