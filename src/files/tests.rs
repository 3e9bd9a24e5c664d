use super::private::{FolderFile, write_new_warnings};
use super::*;

#[test]
fn the_message_does_not_name_the_temporary_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing").join("out");
    let message = write_atomically(&path, |_| Ok(())).unwrap_err().to_string();
    assert!(message.contains("missing/out") && !message.contains(".sparseop-"), "{message}");
}

#[cfg(unix)]
#[test]
fn links_and_devices_stay_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    write_atomically(&link, |out| out.write_all(b"new")).unwrap();
    assert!(link.is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");

    let fifo = folder.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read_to_string(fifo).unwrap()
    });
    write_atomically(&fifo, |out| out.write_all(b"through")).unwrap();
    assert_eq!(reader.join().unwrap(), "through");
    assert!(!fs::metadata(&fifo).unwrap().is_file());
}

#[test]
fn a_read_only_file_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "old").unwrap();
    let mut permissions = fs::metadata(&file).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&file, permissions).unwrap();
    let message = write_atomically(&file, |out| out.write_all(b"new")).unwrap_err().to_string();
    assert!(message.contains("file") && message.contains("read-only"), "{message}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[cfg(unix)]
#[test]
fn an_existing_file_keeps_its_permissions_and_its_hard_links() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, "the old content").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for kept in [0o600, 0o666, 0o640, 0o6755, 0o1644] {
        fs::set_permissions(&file, fs::Permissions::from_mode(kept)).unwrap();
        write_atomically(&file, |out| out.write_all(b"the new content")).unwrap();
        assert_eq!(mode(&file), kept);
    }
    fs::hard_link(&file, &link).unwrap();
    write_atomically(&file, |out| out.write_all(b"newer")).unwrap();
    assert_eq!(fs::read_to_string(&link).unwrap(), "newer");
    let failed = write_atomically(&file, |out| {
        out.write_all(b"half")?;
        Err(io::Error::other("a failure"))
    });
    assert!(failed.is_err());
    assert_eq!(fs::read_to_string(&link).unwrap(), "newer");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
}

#[cfg(target_os = "linux")]
#[test]
fn an_existing_file_keeps_its_attributes() {
    use std::os::fd::AsRawFd;
    // Version 2: tag, permissions and number of the owner, user 1234, group, mask and others.
    let entries = [(1, 6, !0), (2, 4, 1234), (4, 4, !0), (16, 4, !0), (32, 0, !0)];
    let entry = |(tag, permissions, number): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &number.to_le_bytes()].concat()
    };
    let list = [vec![2, 0, 0, 0], entries.map(entry).concat()].concat();
    for (name, value) in [(c"user.origin", b"me".to_vec()), (c"system.posix_acl_access", list)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "the old content").unwrap();
        let file = File::open(&path).unwrap();
        let (descriptor, at, len) = (file.as_raw_fd(), value.as_ptr().cast(), value.len());
        // SAFETY: the descriptor is open, the name ends with a zero, and there are `len` bytes.
        if unsafe { libc::fsetxattr(descriptor, name.as_ptr(), at, len, 0) } != 0 {
            println!("skipped: the file system has no {name:?}");
            continue;
        }
        write_atomically(&path, |out| out.write_all(b"new")).unwrap();
        let (file, mut found) = (File::open(&path).unwrap(), vec![0u8; len + 1]);
        let to = found.as_mut_ptr().cast();
        // SAFETY: as above, and there is room for one byte more.
        let read = unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), to, len + 1) };
        assert_eq!((read, &found[..len]), (len as isize, &value[..]), "{name:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }
}

#[cfg(unix)]
#[test]
fn an_existing_file_keeps_its_owner() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "the old content").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let found = fs::metadata(&file).unwrap();
    // Only the superuser can give files away.
    if chown(&file, Some(found.uid() + 1), Some(found.gid() + 1)).is_err() {
        println!("skipped for another owner: no file can be given to another user");
    }
    let identity = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.uid(), found.gid(), found.mode())
    };
    let old = identity(&file);
    write_atomically(&file, |out| out.write_all(b"new")).unwrap();
    assert_eq!(identity(&file), old);
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
}

#[test]
fn a_failed_copy_keeps_the_content() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "old").unwrap();
    fs::write(folder.path().join("file.new"), "of the user").unwrap();
    let opened = located(&file).unwrap().0;
    let written = write_temporary(&file, &opened, PRIVATE, |out| out.write_all(b"new")).unwrap();
    // It is open for reading only.
    let message = written.copy_into(&File::open(&file).unwrap(), &file).unwrap_err().to_string();
    let kept = folder.path().join("file.new2");
    assert!(message.ends_with(&format!("the complete content is in {}", kept.display())));
    assert_eq!(fs::read_to_string(kept).unwrap(), "new");
    assert_eq!(fs::read_to_string(file).unwrap(), "old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

/// The environment variable with the folder in which a child process copies.
#[cfg(unix)]
const COPYING: &str = "SPARSEOP_TEST_COPYING";

/// More than a pipe holds.
#[cfg(unix)]
const MUCH: usize = 1 << 20;

#[cfg(unix)]
#[test]
fn a_kill_in_a_copy_keeps_the_content() {
    use std::os::unix::process::ExitStatusExt;
    if let Some(folder) = std::env::var_os(COPYING) {
        let file = Path::new(&folder).join("file");
        let folder = located(&file).unwrap().0;
        let written = write_temporary(&file, &folder, PRIVATE, |out| out.write_all(&[7; MUCH]));
        let pipe = File::options().write(true).open(file.with_file_name("pipe")).unwrap();
        unreachable!("{:?}", written.unwrap().copy_into(&pipe, &file));
    }
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Without a reader the copy does not end.
    let _open = File::options().read(true).write(true).open(&pipe).unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["files::tests::a_kill_in_a_copy_keeps_the_content", "--exact"])
        .env(COPYING, folder.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let kept = folder.path().join("file.new");
    let begin = std::time::Instant::now();
    while !kept.exists() && begin.elapsed().as_secs() < 30 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert_eq!(fs::read(kept).unwrap(), [7; MUCH]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "there is no temporary file");
}

#[cfg(unix)]
#[test]
fn a_link_in_place_of_a_file_of_the_library_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, "of the user").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let (opened, name) = located(&link).unwrap();
    replace(&opened, name, |out| out.write_all(b"new")).unwrap();
    assert!(!link.is_symlink());
    assert_eq!(fs::read_to_string(&link).unwrap(), "new");
    assert_eq!(fs::read_to_string(&file).unwrap(), "of the user");
}

#[cfg(unix)]
#[test]
fn leftovers_of_ended_processes_are_removed_after_an_hour() {
    use std::time::{Duration, SystemTime};
    let folder = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let ended = child.id();
    child.wait().unwrap();
    let (own, now, hours) = (std::process::id(), SystemTime::now(), Duration::from_secs(7200));
    let make = |name: String, is_old: bool| {
        let path = folder.path().join(name);
        let file = File::create(&path).unwrap();
        if is_old {
            file.set_modified(now - hours).unwrap();
        }
        (path, file)
    };
    let ended_long_ago = make(format!(".sparseop-{ended}-0"), true).0;
    let ended_now = make(format!(".sparseop-{ended}-1"), false).0;
    let (written, lock) = make(format!(".sparseop-{ended}-2"), true);
    lock.try_lock().unwrap();
    let running = make(format!(".sparseop-{own}-123456"), false).0;
    // The identifier is in use again.
    let reused = make(format!(".sparseop-{own}-123457"), true).0;
    // The clock was set.
    let (ahead, file) = make(format!(".sparseop-{ended}-3"), false);
    file.set_modified(now + hours).unwrap();
    drop(file);
    let others = [".sparseop-x-1", ".sparseop-1", ".sparseop-1-1.mtx", ".sparseop--1-0", "a"];
    let others = others.map(|name| make(name.to_owned(), true).0);
    write_atomically(&folder.path().join("out"), |out| out.write_all(b"x")).unwrap();
    let made = [&ended_long_ago, &ended_now, &written, &running, &reused, &ahead];
    assert_eq!(made.map(|file| file.exists()), [false, true, true, true, false, false]);
    assert!(others.iter().all(|path| path.exists()));
}

#[cfg(unix)]
#[test]
fn a_folder_that_is_exchanged_is_written_and_cleared_no_more() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let [used, moved, other] = ["used", "moved", "other"].map(|name| folder.path().join(name));
    let private = PrivateFolder::new(&used, "a/b", "VARIABLE");
    private.write("entry", |out| out.write_all(b"old")).unwrap();
    let files = private.oldest_first();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("entry"), "of the user").unwrap();
    let written = private.write("entry", |out| {
        // Between the check of the folder and the renaming.
        fs::rename(used.join("a/b"), &moved)?;
        symlink(&other, used.join("a/b"))?;
        out.write_all(b"new")
    });
    written.unwrap();
    assert_eq!(fs::read(moved.join("entry")).unwrap(), b"new");
    files.iter().for_each(FolderFile::remove);
    #[cfg(feature = "cuda")]
    private.remove("entry");
    assert!(!moved.join("entry").exists());
    assert_eq!(fs::read(other.join("entry")).unwrap(), b"of the user");
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
}

/// Messages of the warnings that `tracing` receives.
#[derive(Clone, Default)]
struct Events(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::field::Visit for Events {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{value:?}"));
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[cfg(unix)]
#[test]
fn a_warning_is_written_once() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let private = PrivateFolder::new(folder.path(), "a", "VARIABLE");
    private.write("entry", |out| out.write_all(b"x")).unwrap();
    let path = folder.path().join("a/entry");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
    let events = Events::default();
    tracing::subscriber::with_default(events.clone(), || {
        (0..2).for_each(|_| drop(private.read("entry", 1).unwrap_err()));
    });
    let events = events.0.lock().unwrap();
    assert!(events.len() == 1 && events[0].contains(path.to_str().unwrap()), "{events:?}");
    let lines = || {
        let mut out = Vec::new();
        write_new_warnings(&mut out);
        let text = String::from_utf8(out).unwrap();
        text.lines().filter(|line| line.contains(path.to_str().unwrap())).count()
    };
    assert_eq!([lines(), lines()], [1, 0]);
}

#[cfg(unix)]
#[test]
fn every_folder_of_the_library_is_trusted_or_not_used() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let folder = tempfile::tempdir().unwrap();
    let private = PrivateFolder::new(folder.path(), "a/b", "VARIABLE");
    let write = || private.write("entry", |out| out.write_all(b"x"));
    write().unwrap();
    assert_eq!(private.read("entry", 1), Ok(Some(b"x".to_vec())));
    let above = folder.path().join("a");
    let refused = |expected: &str| {
        let reason = private.read("entry", 1).unwrap_err();
        assert!(reason.contains(&format!("{} is", above.display())), "{reason}");
        assert!(reason.contains(expected), "{reason}");
        assert!(write().unwrap_err().to_string().contains(expected));
        assert!(private.oldest_first().is_empty());
    };
    let set = |mode| fs::set_permissions(&above, fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(fs::metadata(&above).unwrap().permissions().mode() & 0o777, 0o700);
    for open in [0o720, 0o702] {
        set(open);
        refused("others may write to it");
    }
    set(0o755);
    write().unwrap();
    // Only the superuser can give files away.
    let user = folder::user();
    if chown(&above, Some(user + 1), None).is_ok() {
        refused("belongs to user");
        chown(&above, Some(user), None).unwrap();
    }
    let moved = folder.path().join("moved");
    fs::rename(&above, &moved).unwrap();
    symlink(&moved, &above).unwrap();
    refused("symbolic link");
    // The folder that the user names may be a link.
    fs::remove_file(&above).unwrap();
    fs::rename(&moved, &above).unwrap();
    let link = folder.path().join("link");
    symlink(folder.path(), &link).unwrap();
    assert!(PrivateFolder::new(&link, "a/b", "VARIABLE").read("entry", 1).unwrap().is_some());
}

#[cfg(unix)]
#[test]
fn a_folder_that_must_not_be_listed_is_written_to() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o300)).unwrap();
    write_atomically(&folder.path().join("out"), |out| out.write_all(b"x")).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
