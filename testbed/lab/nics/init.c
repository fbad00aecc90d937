/* First process of the lab's guest. Loads the kernel modules of /modules, mounts the host's root over 9p below an
 * overlay in memory, and starts the guest's program there. The kernel's command line has the program and its arguments,
 * separated by commas, as `lab=`. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Prints a failed step on the console, with the system's error, and ends the guest. */
static void fail(const char *step, const char *name)
{
	printf("lab: cannot %s %s: %s\n", step, name, strerror(errno));
	fflush(stdout);
	reboot(RB_POWER_OFF);
	_exit(1);
}

/* Mounts a file system at a directory, which it creates if absent. */
static void mount_at(const char *source, const char *target, const char *type, unsigned long flags, const char *data)
{
	mkdir(target, 0755);
	if (mount(source, target, type, flags, data) != 0)
		fail("mount", target);
}

/* Loads one module. A line of the list has the file's name and, after a space, the module's parameters. */
static void load(char *line)
{
	char *parameters = strchr(line, ' ');
	int file;

	if (parameters)
		*parameters++ = '\0';
	file = open(line, O_RDONLY | O_CLOEXEC);
	if (file < 0 || syscall(SYS_finit_module, file, parameters ? parameters : "", 0) != 0)
		fail("load", line);
	close(file);
}

/* Loads the modules that the initramfs lists, in order. */
static void load_all(void)
{
	char line[256];
	FILE *list = fopen("/modules", "r");

	if (!list)
		fail("read", "/modules");
	while (fgets(line, sizeof line, list)) {
		line[strcspn(line, "\n")] = '\0';
		load(line);
	}
	fclose(list);
}

/* Returns the program of the kernel's command line and its arguments, followed by NULL. Ignores arguments after the
 * first 30. */
static char **program(void)
{
	static char text[2048], *words[32];
	FILE *file = fopen("/proc/cmdline", "r");
	size_t count = 0;
	char *word;

	if (!file || !fgets(text, sizeof text, file) || !(word = strstr(text, "lab=")))
		fail("find", "lab= in the command line");
	for (word = strtok(word + 4, " \n"), word = strtok(word, ","); word && count < 31; word = strtok(NULL, ","))
		words[count++] = word;
	return words;
}

int main(void)
{
	char **words;

	mount_at("proc", "/proc", "proc", 0, NULL);
	mount_at("sys", "/sys", "sysfs", 0, NULL);
	mount_at("dev", "/dev", "devtmpfs", 0, NULL);
	words = program();
	load_all();
	mount_at("host", "/host", "9p", MS_RDONLY, "trans=virtio,version=9p2000.L,msize=262144,cache=loose");
	mount_at("upper", "/upper", "tmpfs", 0, NULL);
	mkdir("/upper/data", 0755);
	mkdir("/upper/work", 0755);
	mount_at("root", "/root", "overlay", 0, "lowerdir=/host,upperdir=/upper/data,workdir=/upper/work");
	if (mount("/proc", "/root/proc", NULL, MS_MOVE, NULL) || mount("/sys", "/root/sys", NULL, MS_MOVE, NULL) ||
	    mount("/dev", "/root/dev", NULL, MS_MOVE, NULL) || chroot("/root") || chdir("/"))
		fail("change to", "the host's root");
	mount_at("run", "/run", "tmpfs", 0, NULL);
	mount_at("shm", "/dev/shm", "tmpfs", 0, NULL);
	mount_at("pages", "/dev/hugepages", "hugetlbfs", 0, NULL);
	setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
	setenv("HOME", "/run", 1);
	setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
	execv(words[0], words);
	fail("start", words[0]);
	return 1;
}
