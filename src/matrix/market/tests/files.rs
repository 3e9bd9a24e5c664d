//! Files: compression, archives, vectors, and their errors.

use super::super::*;
use crate::matrix::Triplets;
use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

const TEXT: &[u8] = b"%%MatrixMarket matrix coordinate real general\n2 3 2\n1 3 1.5\n2 1 -2\n";
const OTHER: &[u8] = b"%%MatrixMarket matrix array real general\n1 1\n7\n";

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

pub(super) fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        archive.append_data(&mut header, name, *text).unwrap();
    }
    archive.into_inner().unwrap()
}

/// Writes bytes to a file of that name and reads it.
fn read_bytes(name: &str, bytes: &[u8]) -> Result<CsrMatrix<f64>, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    read(&path)
}

fn expected() -> CsrMatrix<f64> {
    parse(TEXT).unwrap()
}

#[test]
fn compressed_files_of_one_or_more_members() {
    let (first, second) = TEXT.split_at(30);
    assert_eq!(read_bytes("a.mtx", TEXT).unwrap(), expected());
    assert_eq!(read_bytes("a.mtx.gz", &gzip(TEXT)).unwrap(), expected());
    assert_eq!(read_bytes("a.mtx.gz", &[gzip(first), gzip(second)].concat()).unwrap(), expected());
    assert_eq!(read_bytes("a.mtx.zst", &zstd(TEXT)).unwrap(), expected());
    assert_eq!(read_bytes("a.mtx.zst", &[zstd(first), zstd(second)].concat()).unwrap(), expected());
    // The bytes decide, not the name.
    assert_eq!(read_bytes("a.mtx", &zstd(TEXT)).unwrap(), expected());
    assert_eq!(read_bytes("a.mtx.gz", TEXT).unwrap(), expected());
}

#[test]
fn archives_give_the_namesake_or_the_only_matrix() {
    let collection =
        tar(&[("cant/cant_b.mtx", OTHER), ("cant/README", b"-"), ("cant/cant.mtx", TEXT)]);
    assert_eq!(read_bytes("any.tar.gz", &gzip(&collection)).unwrap(), expected());
    assert_eq!(read_bytes("any.tgz", &gzip(&collection)).unwrap(), expected());
    assert_eq!(read_bytes("any.tar.zst", &zstd(&collection)).unwrap(), expected());
    let flat = tar(&[("b.mtx", OTHER), ("cant.mtx", TEXT)]);
    assert_eq!(read_bytes("cant.tar.gz", &gzip(&flat)).unwrap(), expected());
    assert_eq!(read_bytes("cant.tar", &flat).unwrap(), expected());
    let only = tar(&[("x/._a.mtx", OTHER), ("x/a.mtx", TEXT), ("x/a.txt", OTHER)]);
    assert_eq!(read_bytes("b.tar.gz", &gzip(&only)).unwrap(), expected());
    let message = read_bytes("c.tar.gz", &gzip(&flat)).unwrap_err().to_string();
    assert!(message.contains("unpack one of b.mtx, cant.mtx"), "{message}");
    let hostile = tar(&[("x\u{1b}[2J.mtx", TEXT), ("y\n.mtx", TEXT)]);
    let message = read_bytes("d.tar", &hostile).unwrap_err().to_string();
    assert!(message.contains("x\\u{1b}[2J.mtx, y\\n.mtx"), "{message}");
    assert!(!message.contains(char::is_control), "{message}");
    let message = read_bytes("c.tar.gz", &gzip(&tar(&[("a.txt", TEXT)]))).unwrap_err().to_string();
    assert!(message.contains("has no .mtx file"), "{message}");
}

#[test]
fn links_and_names_in_archives_reach_nothing_outside() {
    let folder = tempfile::tempdir().unwrap();
    let (outside, path) = (folder.path().join("outside.mtx"), folder.path().join("inside/a.tar"));
    fs::write(&outside, OTHER).unwrap();
    fs::create_dir(path.parent().unwrap()).unwrap();
    let entry =
        |archive: &mut tar::Builder<_>, name: &str, kind, link: Option<&Path>, text: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(text.len() as u64);
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            link.into_iter().for_each(|link| header.set_link_name(link).unwrap());
            header.set_cksum();
            archive.append(&header, text).unwrap();
        };
    let absolute = folder.path().join("made.mtx");
    let names = ["../made.mtx", "a/../../made.mtx", absolute.to_str().unwrap(), "./a.mtx"];
    for links in [tar::EntryType::Symlink, tar::EntryType::Link] {
        for name in [None].into_iter().chain(names.map(Some)) {
            let mut archive = tar::Builder::new(Vec::new());
            for (link, to) in [("a/a.mtx", outside.as_path()), ("a.mtx", "../outside.mtx".as_ref())]
            {
                entry(&mut archive, link, links, Some(to), b"");
            }
            entry(&mut archive, "a/", tar::EntryType::Directory, None, b"");
            if let Some(name) = name {
                entry(&mut archive, name, tar::EntryType::Regular, None, TEXT);
            }
            fs::write(&path, archive.into_inner().unwrap()).unwrap();
            match (read::<f64>(&path), name) {
                (Ok(found), Some(_)) => assert_eq!(found, expected(), "{name:?}"),
                (Err(error), None) => assert!(error.to_string().contains("has no .mtx file")),
                (found, _) => panic!("{name:?}: {found:?}"),
            }
            let entries = |path: &Path| fs::read_dir(path).unwrap().count();
            assert_eq!([entries(folder.path()), entries(path.parent().unwrap())], [2, 1]);
            assert_eq!(fs::read(&outside).unwrap(), OTHER);
        }
    }
}

#[test]
fn files_cut_short_are_refused() {
    let archive = tar(&[("a/a.mtx", TEXT)]);
    for (name, bytes) in [
        ("a.mtx.gz", gzip(TEXT)),
        ("a.mtx.zst", zstd(TEXT)),
        ("a.tar.gz", gzip(&archive)),
        ("a.tar.gz", gzip(&archive[..540])),
        ("a.tar", archive[..540].to_vec()),
    ] {
        for len in [4, 12, bytes.len() / 2, bytes.len() - 1] {
            let error = read_bytes(name, &bytes[..len]).unwrap_err();
            let io = matches!(error, Error::Io { action: "decompress" | "unpack", .. });
            // A tar file without its magic word is read as text.
            assert!(io || name == "a.tar", "{name} {len}: {error}");
            assert!(error.to_string().contains(name));
        }
    }
    let message = read_bytes("a.mtx.gz", &gzip(&TEXT[..60])).unwrap_err().to_string();
    assert!(
        message.contains("a.mtx.gz:4: the file ends after 1 of the 2") || message.contains(":3:"),
        "{message}"
    );
}

#[test]
fn paths_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(read::<f32>(folder.path()), Err(Error::Io { action: "read", .. })));
    assert!(matches!(
        read::<f32>(folder.path().join("no.mtx")),
        Err(Error::Io { action: "open", .. })
    ));
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(matches!(read::<f32>(&file), Err(Error::Market { line: None, .. })));
    assert!(matches!(read::<f32>(file.join("below")), Err(Error::Io { action: "open", .. })));
    let bad =
        read_bytes("bad.mtx", b"%%MatrixMarket matrix coordinate real general\n1 1 1\n1 2 3\n")
            .unwrap_err();
    assert!(
        bad.to_string().ends_with("bad.mtx:3: column 2 is out of range: there are only 1"),
        "{bad}"
    );
}

#[cfg(unix)]
#[test]
fn an_unreadable_file_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret.mtx");
    fs::write(&path, TEXT).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    // Root can read everything.
    match read::<f64>(&path) {
        Err(error) => {
            assert!(
                matches!(error, Error::Io { action: "open", .. })
                    && error.to_string().contains("secret")
            )
        }
        Ok(a) => assert_eq!(a, expected()),
    }
}

#[test]
fn decompression_stops_at_the_limit() {
    let bomb = gzip(&vec![b'\n'; 10 << 20]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.mtx.gz");
    fs::write(&path, bomb).unwrap();
    let error = Reader::new().memory_limit(1 << 20).read::<f32>(&path).unwrap_err();
    assert!(error.to_string().contains("above the limit of 1048576"), "{error}");
}

#[test]
fn progress_ends_at_the_total() {
    let (parsed, decompressed) = (AtomicU64::new(0), AtomicU64::new(0));
    let listener = |progress: ReadProgress| {
        assert!(progress.done <= progress.total);
        let stage = if progress.stage == ReadStage::Parse { &parsed } else { &decompressed };
        stage.fetch_max(progress.done, Ordering::Relaxed);
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mtx.zst");
    let compressed = zstd(TEXT);
    fs::write(&path, &compressed).unwrap();
    let reader = Reader { chunk_bytes: Some(3), ..Reader::new() }.progress(&listener);
    assert_eq!(reader.read::<f64>(&path).unwrap(), expected());
    assert_eq!(parsed.into_inner(), TEXT.len() as u64);
    assert_eq!(decompressed.into_inner(), compressed.len() as u64);
}

#[test]
fn a_failed_write_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").join("a.mtx");
    assert!(matches!(write(&missing, expected().view()), Err(Error::Io { action: "create", .. })));
    // A folder cannot be replaced by a file.
    let occupied = folder.path().join("occupied");
    fs::create_dir(&occupied).unwrap();
    assert!(write(&occupied, expected().view()).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn written_text_is_plain_and_replaces_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mtx");
    fs::write(&path, "old").unwrap();
    let mut t = Triplets::new(2, 12).unwrap();
    for (row, col, value) in
        [(1, 0, 1.0f32), (0, 11, -0.1), (0, 1, 1e-20), (1, 3, 16777216.0), (1, 4, 3e20)]
    {
        t.push(row, col, value).unwrap();
    }
    write(&path, t.to_csr().view()).unwrap();
    let text = "%%MatrixMarket matrix coordinate real general\n2 12 5\n1 2 1e-20\n1 12 -0.1\n2 1 \
                1\n2 4 16777216\n2 5 3e20\n";
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Permissions as for any file a program creates: not private to the owner unless the umask
        // says so.
        let ordinary = fs::metadata({
            fs::write(folder.path().join("b"), "").unwrap();
            folder.path().join("b")
        });
        let mode = |metadata: fs::Metadata| metadata.permissions().mode();
        assert_eq!(mode(fs::metadata(&path).unwrap()), mode(ordinary.unwrap()));
    }
}

#[test]
fn vectors_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let read_text = |text: &str| {
        let path = folder.path().join("x.txt");
        fs::write(&path, text).unwrap();
        read_vector::<f64>(&path)
    };
    assert_eq!(read_text("1\n\n% comment\n 2.5d0 \r\n-3").unwrap(), [1.0, 2.5, -3.0]);
    assert_eq!(
        read_text("%%MatrixMarket matrix array real general\n3 1\n1\n0\n3\n").unwrap(),
        [1.0, 0.0, 3.0]
    );
    let coordinate = "%%MatrixMarket matrix coordinate integer general\n3 1 2\n3 1 5\n1 1 2\n";
    assert_eq!(read_text(coordinate).unwrap(), [2.0, 0.0, 5.0]);
    assert_eq!(
        read_text("%%MatrixMarket matrix array real general\n0 1\n").unwrap(),
        [] as [f64; 0]
    );
    for (text, message) in [
        ("", "there is no number"),
        ("1\n2 3\n", "x.txt:2: unexpected `3`"),
        ("1\nx\n", "x.txt:2: `x` is not a number"),
        (
            "%%MatrixMarket matrix array real general\n1 2\n1\n2\n",
            "must have one column, but this is 1 x 2",
        ),
        ("%%MatrixMarket matrix array real general\n2 1\n1\n", "ends after 1 of the 2"),
    ] {
        let error = read_text(text).unwrap_err().to_string();
        assert!(error.contains(message), "{text:?}: {error}");
    }
    let vector = [1.0, -0.0, f64::MIN_POSITIVE, 0.1 + 0.2, f64::INFINITY];
    for name in ["x.mtx", "x.mtx.gz", "x.mtx.zst"] {
        let path = folder.path().join(name);
        write_vector(&path, &vector).unwrap();
        let read = read_vector::<f64>(&path).unwrap();
        assert!(read.iter().map(|v| v.to_bits()).eq(vector.iter().map(|v| v.to_bits())));
    }
}

#[test]
fn names_of_matrices() {
    for name in ["a.mtx", "dir/A.MTX", "a.mtx.gz", "a.b.mtx.zst", "a.tar.gz", "a.tgz"] {
        assert!(is_matrix_path(name), "{name}");
    }
    for name in ["", "a", ".mtx", "a.mtx.xz", "a.gz", "mtx", "a.tar"] {
        assert!(!is_matrix_path(name), "{name}");
    }
}
