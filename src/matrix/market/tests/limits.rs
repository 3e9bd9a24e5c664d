//! Limits of memory: small files that declare or decompress to much.

use super::super::source::ByteStream;
use super::super::*;
use super::files::{gzip, tar, zstd};
use crate::{ErrorKind, memory};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const TEXT: &[u8] = b"%%MatrixMarket matrix coordinate real general\n2 3 2\n1 3 1.5\n2 1 -2\n";

/// Limit of the tests.
const LIMIT: u64 = 1 << 16;

/// Writes bytes to a file.
fn file(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// Message of the refusal to read a file of these bytes within the limit.
fn refusal(name: &str, bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, name, bytes);
    Reader::new().memory_limit(LIMIT).read::<f64>(&path).unwrap_err().to_string()
}

#[test]
fn texts_above_the_limit_are_refused_however_they_arrive() {
    let long = [TEXT, &vec![b'\n'; 4 << 20]].concat();
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        ("a.mtx", long.clone()),
        ("a.mtx.gz", gzip(&long)),
        ("a.mtx.zst", zstd(&long)),
        ("a.tar", tar(&[("a/a.mtx", &long)])),
        ("a.tar.gz", gzip(&tar(&[("a/a.mtx", &long)]))),
    ] {
        assert!(refusal(name, &bytes).contains("is above the limit of 65536 bytes"), "{name}");
        assert!(read::<f64>(file(&folder, name, &bytes)).is_ok(), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_is_read_up_to_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let through_pipe = |bytes: Vec<u8>| {
        let pipe = folder.path().join("pipe");
        let _ = fs::remove_file(&pipe);
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            // The reader closes the pipe early.
            move || drop(fs::write(pipe, bytes))
        });
        let read = Reader::new().memory_limit(LIMIT).read::<f64>(&pipe);
        writer.join().unwrap();
        read
    };
    assert_eq!(through_pipe(TEXT.to_vec()).unwrap(), parse(TEXT).unwrap());
    assert_eq!(through_pipe(gzip(TEXT)).unwrap(), parse(TEXT).unwrap());
    let long = [TEXT, &vec![b'\n'; 4 << 20]].concat();
    let refused = through_pipe(long).unwrap_err().to_string();
    assert!(refused.contains("above the limit"), "{refused}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_without_an_end_is_read_up_to_the_limit() {
    let refused = Reader::new().memory_limit(LIMIT).read::<f64>("/dev/zero").unwrap_err();
    assert!(refused.to_string().contains("above the limit"), "{refused}");
}

#[test]
fn long_names_in_archives_are_refused() {
    let name = format!("{}/a.mtx", "n".repeat(1 << 17));
    let named = tar(&[(&name, TEXT)]);
    for (file, bytes) in [("a.tar", named.clone()), ("a.tar.gz", gzip(&named))] {
        let message = refusal(file, &bytes);
        assert!(message.contains("headers of a file in the archive are too long"), "{message}");
    }
    let folder = tempfile::tempdir().unwrap();
    let named = tar(&[(&format!("{}/a.mtx", "n".repeat(200)), TEXT)]);
    let path = file(&folder, "a.tar", &named);
    let read = Reader::new().memory_limit(LIMIT).read::<f64>(path).unwrap();
    assert_eq!(read, parse(TEXT).unwrap());
}

#[test]
fn headers_that_declare_too_much_are_refused() {
    let rows = b"%%MatrixMarket matrix coordinate real general\n4294967294 1 0\n";
    let refused = Reader::new().memory_limit(LIMIT).parse::<f64>(rows).unwrap_err().to_string();
    assert!(refused.contains("above the limit of 65536"), "{refused}");
    // Refused by its lines, before an entry is parsed.
    let mut entries = b"%%MatrixMarket matrix coordinate pattern general\n9 9 9999\n".to_vec();
    entries.extend_from_slice(&b"1 1\n".repeat(9999));
    let refused = Reader::new().memory_limit(LIMIT).parse::<f64>(&entries).unwrap_err();
    assert!(refused.to_string().contains("with at least 9999 entries takes"), "{refused}");
    // Rows that no memory holds.
    let refused = Reader::new().memory_limit(u64::MAX).parse::<f64>(rows);
    if let Err(error) = refused {
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    }
}

/// The text of an entry takes less memory than the entry: the limit of the text would be too late.
#[test]
fn entries_above_the_limit_are_refused_before_all_are_read() {
    const ENTRIES: usize = 1 << 18;
    let folder = tempfile::tempdir().unwrap();
    for (symmetry, of_line) in [("general", 1), ("symmetric", 2)] {
        let line = if of_line == 1 { b"1 1\n" } else { b"2 1\n" };
        let header =
            format!("%%MatrixMarket matrix coordinate pattern {symmetry}\n2 2 {ENTRIES}\n");
        let text = [header.as_bytes(), &line.repeat(ENTRIES)].concat();
        for (name, bytes) in
            [("a.mtx.gz", gzip(&text)), ("a.tar.gz", gzip(&tar(&[("a.mtx", &text)])))]
        {
            let path = file(&folder, name, &bytes);
            let most = AtomicU64::new(0);
            let listener = |progress: ReadProgress| {
                most.fetch_max(progress.done, Relaxed);
            };
            let limit = text.len() as u64;
            let mut reader = Reader::new().memory_limit(limit).progress(&listener);
            (reader.window_bytes, reader.chunk_bytes) = (Some(1 << 14), Some(1 << 12));
            let refused = reader.read::<f64>(&path).unwrap_err().to_string();
            assert!(refused.contains("entries takes"), "{name}: {refused}");
            // An entry takes 12 bytes, and its line four.
            let expected = limit / 3 / of_line;
            // A tar is parsed in one window, in parallel.
            let is_early = most.load(Relaxed) < expected + (1 << 16);
            assert!(is_early || name == "a.tar.gz", "{symmetry} {name}: {most:?} of {limit}");
            assert!(parse::<f64>(&text).is_ok());
        }
    }
}

#[test]
fn the_default_limit_leaves_memory_for_the_program() {
    let limit = Reader::new().memory_limit;
    assert!(limit <= memory::limit() / 8 * 7, "{limit}");
    assert!(memory::check_growth(limit).is_ok());
    let refused = memory::check_growth(memory::limit()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
}

#[cfg(unix)]
#[test]
fn large_files_are_read_in_pieces_and_cut_ones_refused() {
    let folder = tempfile::tempdir().unwrap();
    let long = [TEXT, &vec![b'\n'; 9 << 20]].concat();
    let path = file(&folder, "a.mtx", &long);
    assert_eq!(read::<f64>(&path).unwrap(), parse(TEXT).unwrap());
    let len = long.len() as u64 + 1;
    let mut cut = source::parallel::PlainFile { file: fs::File::open(&path).unwrap(), at: 0, len };
    let refused = cut.fill(&mut vec![0; len as usize]).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::UnexpectedEof);
    assert_eq!(refused.to_string(), "it became shorter while it was read");
}
