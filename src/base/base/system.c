/* system.c - what this machine is and what this process may use of it.
 *
 * "May use" is the smallest of what the hardware has, the CPU set of the process, and the limits of its control
 * groups (version 1 and 2): in a container the hardware's own numbers would plan for memory and cores that do not
 * exist for us. A number that cannot be found is 0, except that there is always one core.
 * The resident-size functions read /proc with plain system calls, so that a step may call them without allocating. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Reads the start of a small file into buf, NUL terminated. False when it cannot be read. */
static bool read_small(const char *path, char *buf, size_t capacity) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t length = 0;
    while (length < capacity - 1) {
        ssize_t n = read(fd, buf + length, capacity - 1 - length);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        length += (size_t)n;
    }
    close(fd);
    buf[length] = 0;
    return length > 0;
}

/* The text after `key` and the blanks that follow it, where `key` starts a line; NULL when there is none. */
static const char *find_line(const char *text, const char *key) {
    size_t n = strlen(key);
    for (const char *p = text; p; p = strchr(p, '\n')) {
        if (*p == '\n') p++;
        if (strncmp(p, key, n) == 0) return p + n + strspn(p + n, " \t:");
    }
    return NULL;
}

static uint64_t number_after(const char *text, const char *key) {
    const char *p = find_line(text, key);
    return p ? strtoull(p, NULL, 10) : 0;
}

/* ---- control groups ------------------------------------------------------------------------------------------ */

/* The group directories that bind this process, innermost first. The mount may show the whole tree or, in a
 * container, only our own part of it; so every ancestor is tried and absent files are no limit. */
typedef struct cgroup_walk {
    char path[PATH_MAX];
    size_t root; /* length of the mount point, where the walk ends */
    bool done;
} cgroup_walk;

/* Lines of /proc/self/cgroup read "4:cpu,cpuacct:/path"; version 2 has one line, "0::/path". A controller that
 * version 1 holds is named there, and then version 2 does not limit it. */
static void cgroup_walk_init(cgroup_walk *w, const char *groups, const char *controller) {
    const char *v1 = NULL, *v2 = NULL;
    size_t n = strlen(controller);
    for (const char *line = groups; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *list = line + strcspn(line, ":\n");
        if (*list != ':') continue;
        list++;
        const char *path = list + strcspn(list, ":\n");
        if (*path != ':') continue;
        if (list == path) v2 = path + 1;
        for (const char *name = list; name < path; name += strcspn(name, ",:"), name += *name == ',')
            if (strncmp(name, controller, n) == 0 && strchr(",:", name[n])) v1 = path + 1;
    }
    *w = (cgroup_walk){.done = true};
    const char *found = v1 ? v1 : v2;
    if (!found) return;
    w->root = (size_t)snprintf(w->path, sizeof w->path, "/sys/fs/cgroup%s%s", v1 ? "/" : "", v1 ? controller : "");
    size_t tail = strcspn(found, "\n");
    if (tail == 1) tail = 0; /* "/" */
    if (w->root + tail >= sizeof w->path) return;
    memcpy(w->path + w->root, found, tail);
    w->path[w->root + tail] = 0;
    w->done = false;
}

static void cgroup_walk_up(cgroup_walk *w) {
    char *slash = strrchr(w->path, '/');
    if (slash && (size_t)(slash - w->path) >= w->root) *slash = 0;
    else w->done = true;
}

static bool cgroup_read(const cgroup_walk *w, const char *file, char *buf, size_t capacity) {
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", w->path, file);
    return read_small(path, buf, capacity);
}

static bool cgroup_number(const cgroup_walk *w, const char *v2, const char *v1, uint64_t *out) {
    char text[64];
    if (!cgroup_read(w, v2, text, sizeof text) && !cgroup_read(w, v1, text, sizeof text)) return false;
    if (text[0] < '0' || text[0] > '9') return false; /* "max" */
    *out = strtoull(text, NULL, 10);
    return true;
}

static void limit_memory(sys_info *out, const char *groups) {
    cgroup_walk w;
    for (cgroup_walk_init(&w, groups, "memory"); !w.done; cgroup_walk_up(&w)) {
        uint64_t limit, used = 0;
        char stat[8192];
        if (!cgroup_number(&w, "memory.max", "memory.limit_in_bytes", &limit)) continue;
        if (limit >= out->memory_total) continue;
        out->memory_total = limit;
        cgroup_number(&w, "memory.current", "memory.usage_in_bytes", &used);
        if (cgroup_read(&w, "memory.stat", stat, sizeof stat)) /* cached file pages are given back on demand */
            used -= MIN(used, MAX(number_after(stat, "inactive_file"), number_after(stat, "total_inactive_file")));
        out->memory_available = MIN(out->memory_available, limit - MIN(limit, used));
    }
}

/* Cores' worth of time per period, rounded up; n when there is no limit. */
static int limit_cores(int n, const char *groups) {
    cgroup_walk w;
    for (cgroup_walk_init(&w, groups, "cpu"); !w.done; cgroup_walk_up(&w)) {
        char text[64];
        uint64_t quota = 0, period = 0;
        if (cgroup_read(&w, "cpu.max", text, sizeof text)) { /* "200000 100000" or "max 100000" */
            char *rest;
            quota = strtoull(text, &rest, 10);
            period = strtoull(rest, NULL, 10);
        } else if (cgroup_number(&w, "cpu.cfs_quota_us", "cpu.cfs_quota_us", &quota)) {
            cgroup_number(&w, "cpu.cfs_period_us", "cpu.cfs_period_us", &period);
        }
        if (quota > 0 && period > 0) n = (int)MIN((uint64_t)n, (quota + period - 1) / period);
    }
    return n;
}

/* ---- the parts that do not change while we run ---------------------------------------------------------------- */

static sys_info fixed;
static pthread_once_t fixed_once = PTHREAD_ONCE_INIT;

static void find_cpu_name(char out[128], const char *cpuinfo) {
    /* Arm kernels give numbers, not names. */
    static const struct {
        unsigned implementer, part;
        const char *name;
    } parts[] = {
        {0x41, 0xd08, "Arm Cortex-A72"},  {0x41, 0xd0b, "Arm Cortex-A76"},  {0x41, 0xd0c, "Arm Neoverse-N1"},
        {0x41, 0xd40, "Arm Neoverse-V1"}, {0x41, 0xd49, "Arm Neoverse-N2"}, {0x41, 0xd4f, "Arm Neoverse-V2"},
        {0x41, 0xd84, "Arm Neoverse-V3"}, {0x41, 0xd8e, "Arm Neoverse-N3"}, {0xc0, 0xac3, "Ampere-1"},
    };
    const char *name = find_line(cpuinfo, "model name");
    if (name) {
        snprintf(out, 128, "%.*s", (int)strcspn(name, "\n"), name);
        return;
    }
    const char *implementer_at = find_line(cpuinfo, "CPU implementer"), *part_at = find_line(cpuinfo, "CPU part");
    if (!implementer_at || !part_at) {
        snprintf(out, 128, "unknown");
        return;
    }
    unsigned implementer = (unsigned)strtoul(implementer_at, NULL, 16), part = (unsigned)strtoul(part_at, NULL, 16);
    snprintf(out, 128, "Arm implementer 0x%x part 0x%x", implementer, part);
    for (size_t i = 0; i < ARRAY_LENGTH(parts); i++)
        if (parts[i].implementer == implementer && parts[i].part == part) snprintf(out, 128, "%s", parts[i].name);
}

/* A word of the first core's list of features. */
static bool has_feature(const char *cpuinfo, const char *word) {
    const char *at = find_line(cpuinfo, "Features"); /* arm64 */
    if (!at) at = find_line(cpuinfo, "flags");
    size_t length = strlen(word);
    for (; at && *at && *at != '\n'; at += strcspn(at, " \n"), at += strspn(at, " "))
        if (strncmp(at, word, length) == 0 && strchr(" \n", at[length])) return true;
    return false;
}

/* Cores, not hardware threads: two threads of one core share its arithmetic units. 0 where hwloc cannot tell. */
static int count_cores(void) {
    int n_cores = 0;
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0) return 0;
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    if (hwloc_topology_load(topology) == 0) {
        if (hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) != 0)
            hwloc_bitmap_copy(allowed, hwloc_topology_get_allowed_cpuset(topology));
        hwloc_obj_t core = NULL;
        while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)))
            n_cores += hwloc_bitmap_intersects(core->cpuset, allowed);
    }
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    return n_cores;
}

static void find_fixed(void) {
    char cpuinfo[8192] = "", groups[4096] = "";
    struct utsname names;
    read_small("/proc/cpuinfo", cpuinfo, sizeof cpuinfo);
    read_small("/proc/self/cgroup", groups, sizeof groups);
    find_cpu_name(fixed.cpu_name, cpuinfo);
    fixed.bf16_matrix = has_feature(cpuinfo, "bf16") || has_feature(cpuinfo, "amx_bf16");
    if (uname(&names) == 0) snprintf(fixed.arch, sizeof fixed.arch, "%.15s", names.machine);
    fixed.n_cores = count_cores();
    if (fixed.n_cores == 0) fixed.n_cores = (int)MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
    fixed.n_cores = MAX(limit_cores(fixed.n_cores, groups), 1);
}

void sys_info_get(sys_info *out) {
    pthread_once(&fixed_once, find_fixed);
    *out = fixed;
    char text[4096];
    if (read_small("/proc/meminfo", text, sizeof text)) {
        out->memory_total = number_after(text, "MemTotal") * 1024;
        out->memory_available = number_after(text, "MemAvailable") * 1024;
    }
    if (read_small("/proc/self/cgroup", text, sizeof text)) limit_memory(out, text);
}

uint64_t sys_rss_bytes(void) {
    char text[256], *rest;
    if (!read_small("/proc/self/statm", text, sizeof text)) return 0;
    strtoull(text, &rest, 10); /* the whole address space; resident pages come second */
    return strtoull(rest, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t sys_rss_peak_bytes(void) {
    char text[4096];
    return read_small("/proc/self/status", text, sizeof text) ? number_after(text, "VmHWM") * 1024 : 0;
}

void sys_rss_peak_reset(void) {
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t written = write(fd, "5", 1); /* proc(5): resets VmHWM */
    (void)written;
    close(fd);
}

/* ---- who has the cores ------------------------------------------------------------------------------------------- */

static double seconds_of(int who) {
    struct rusage r;
    if (getrusage(who, &r) != 0) return 0;
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + 1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

void sys_cores_get(sys_cores *out) {
    enum { USER, NICE, SYSTEM, IDLE, IO_WAIT, IRQ, SOFT_IRQ, STEAL, COLUMNS }; /* of /proc/stat, see proc_stat(5) */
    char text[512];
    double ticks[COLUMNS];
    *out = (sys_cores){0};
    const char *at = read_small("/proc/stat", text, sizeof text) ? find_line(text, "cpu ") : NULL;
    for (int i = 0; at && i < COLUMNS; i++) {
        char *end;
        ticks[i] = (double)strtoull(at, &end, 10) / (double)sysconf(_SC_CLK_TCK);
        at = end > at ? end : NULL;
    }
    if (!at) return;
    *out = (sys_cores){.own = seconds_of(RUSAGE_SELF) + seconds_of(RUSAGE_CHILDREN),
                       .busy = ticks[USER] + ticks[NICE] + ticks[SYSTEM] + ticks[IRQ] + ticks[SOFT_IRQ],
                       .idle = ticks[IDLE] + ticks[IO_WAIT],
                       .stolen = ticks[STEAL]};
}

sys_contention sys_contention_between(const sys_cores *before, const sys_cores *after) {
    const double shortest = 1, to_spare = 0.1; /* seconds of work; share of all cores */
    double busy = after->busy - before->busy, idle = after->idle - before->idle;
    double stolen = MAX(after->stolen - before->stolen, 0), all = busy + idle + stolen;
    double others = MAX(busy - (after->own - before->own), 0);
    if (busy < shortest) return (sys_contention){0};
    /* Idle cores mean that other programs took nothing from us; stolen time is lost in any case. */
    return (sys_contention){.others = idle > to_spare * all ? 0 : others / all, .stolen = stolen / (busy + stolen)};
}

const char *sys_contention_text(char out[128], const sys_contention *c) {
    const double enough = 0.05;
    bool others = c->others >= enough, stolen = c->stolen >= enough;
    int n = 0;
    out[0] = 0;
    if (others) n = snprintf(out, 128, "other programs used %.0f %% of the CPU time", 100 * c->others);
    if (stolen)
        snprintf(out + n, 128 - (size_t)n, "%sother virtual machines%s %.0f %%%s", others ? ", " : "",
                 others ? "" : " used", 100 * c->stolen, others ? "" : " of the CPU time");
    return out;
}
