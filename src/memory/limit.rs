//! Limits on the memory of the process.

use crate::files;
use std::path::Path;
use std::sync::OnceLock;

/// Bytes of memory that the process may use: the least of the memory of the machine, the limits of
/// its control groups, and the limit of its address space; the largest number if the system reports
/// none.
pub(crate) fn limit() -> u64 {
    static FIXED: OnceLock<u64> = OnceLock::new();
    let fixed = *FIXED.get_or_init(|| physical().min(of_control_groups(files::system_text)));
    fixed.min(address_space())
}

/// Physical memory of the machine, in bytes.
fn physical() -> u64 {
    #[cfg(all(unix, not(miri)))]
    {
        // SAFETY: two queries of the system, with valid arguments.
        let (pages, size) =
            unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        if let (Ok(pages @ 1..), Ok(size @ 1..)) = (u64::try_from(pages), u64::try_from(size)) {
            return pages.saturating_mul(size);
        }
    }
    u64::MAX
}

/// Limit of the address space (`RLIMIT_AS`), in bytes.
fn address_space() -> u64 {
    #[cfg(all(unix, not(miri)))]
    {
        let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a query of the system, with room for its result.
        let found = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limits) } == 0;
        if found && limits.rlim_cur != libc::RLIM_INFINITY {
            #[allow(clippy::unnecessary_cast)] // Some systems have 32-bit limits.
            return limits.rlim_cur as u64;
        }
    }
    u64::MAX
}

/// Least memory limit of the control groups of the process, of version 1 and of version 2, and of
/// their parents. `read` returns the text of a file.
fn of_control_groups(read: impl Fn(&Path) -> Option<String>) -> u64 {
    let text = |path: &str| read(Path::new(path)).unwrap_or_default();
    let (groups, mounts) = (text("/proc/self/cgroup"), text("/proc/self/mountinfo"));
    let mut least = u64::MAX;
    for group in groups.lines() {
        // `NUMBER:CONTROLLERS:PATH`; version 2 has no controllers there.
        let mut fields = group.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (kind, option, file) = match controllers {
            "" => ("cgroup2", None, "memory.max"),
            _ if has_word(controllers, "memory") => {
                ("cgroup", Some("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for mount in mounts.lines().filter_map(Mount::parse) {
            if mount.kind != kind || option.is_some_and(|word| !has_word(mount.options, word)) {
                continue;
            }
            let below = path.strip_prefix(mount.root).unwrap_or(path).trim_start_matches('/');
            for group in Path::new(below).ancestors() {
                let limit = read(&Path::new(mount.point).join(group).join(file));
                // Version 2 writes `max` where there is no limit.
                least = least.min(limit.and_then(|l| l.trim().parse().ok()).unwrap_or(u64::MAX));
            }
        }
    }
    least
}

/// True if a list separated by commas has the word.
fn has_word(list: &str, word: &str) -> bool {
    list.split(',').any(|item| item == word)
}

/// A mounted file system: a line of `/proc/self/mountinfo`.
struct Mount<'a> {
    /// Folder of the file system that is mounted.
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (place, system) = line.split_once(" - ")?;
        let (mut place, mut system) = (place.split(' ').skip(3), system.split(' '));
        Some(Self {
            root: place.next()?.trim_end_matches('/'),
            point: place.next()?,
            kind: system.next()?,
            options: system.nth(1)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit that a system with these files reports.
    fn limit_of(files: &[(&str, &str)]) -> u64 {
        let find = |path: &Path| files.iter().find(|file| Path::new(file.0) == path);
        of_control_groups(|path| find(path).map(|file| file.1.to_owned()))
    }

    #[test]
    fn the_least_limit_of_a_group_and_its_parents_holds() {
        const MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        let files = |own, parent| {
            [
                ("/proc/self/cgroup", "0::/user.slice/job\n"),
                ("/proc/self/mountinfo", MOUNT),
                ("/sys/fs/cgroup/user.slice/job/memory.max", own),
                ("/sys/fs/cgroup/user.slice/memory.max", parent),
            ]
        };
        assert_eq!(limit_of(&files("3000\n", "max\n")), 3000);
        assert_eq!(limit_of(&files("max\n", "2000\n")), 2000);
        assert_eq!(limit_of(&files("3000\n", "2000\n")), 2000);
        assert_eq!(limit_of(&files("max\n", "max\n")), u64::MAX);
        assert_eq!(limit_of(&[]), u64::MAX);
    }

    #[test]
    fn groups_of_version_1_are_below_the_root_of_their_mount() {
        let mounts = "31 23 0:28 /docker/7f /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      35 31 0:32 /docker/7f /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let limits = |path| {
            limit_of(&[
                ("/proc/self/cgroup", "5:cpu:/docker/7f\n4:hugetlb,memory:/docker/7f/job\n0::/\n"),
                ("/proc/self/mountinfo", mounts),
                (path, "4096\n"),
                ("/sys/fs/cgroup/cpu/memory.limit_in_bytes", "1\n"),
            ])
        };
        assert_eq!(limits("/sys/fs/cgroup/memory/job/memory.limit_in_bytes"), 4096);
        assert_eq!(limits("/sys/fs/cgroup/memory/memory.limit_in_bytes"), 4096);
        assert_eq!(limits("/sys/fs/cgroup/memory/other/memory.limit_in_bytes"), u64::MAX);
    }

    #[test]
    fn this_process_has_a_limit() {
        /// Environment variable of a process with a limit of its address space.
        const CHILD: &str = "SPARSEOP_TEST_LIMIT";
        const KIB: u64 = 3 << 20;
        assert!(limit() >= 1 << 26 && limit() <= physical());
        if std::env::var_os(CHILD).is_some() {
            assert_eq!(address_space(), KIB << 10);
            let fixed = physical().min(of_control_groups(files::system_text));
            assert_eq!(limit(), fixed.min(KIB << 10));
        } else if cfg!(all(unix, not(miri))) {
            let mut shell = std::process::Command::new("sh");
            let test = "memory::limit::tests::this_process_has_a_limit";
            let script = format!("ulimit -v {KIB} && exec \"$0\" --exact {test}");
            shell.args(["-c", &script]).arg(std::env::current_exe().unwrap()).env(CHILD, "1");
            let output = shell.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
        }
    }
}
