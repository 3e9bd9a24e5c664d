//! Text of a Matrix Market file, from its path: mapped, decompressed, extracted from its archive.

use super::header::has_banner;
use super::{ParseProblem, ReadStage, Reader};
use crate::Error;
use flate2::bufread::MultiGzDecoder;
use memmap2::Mmap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// A tar archive begins with a header block, and every header since POSIX.1-1988 has this word at
/// this offset.
const TAR_BLOCK: usize = 512;
const TAR_MAGIC: (usize, &[u8]) = (257, b"ustar");

/// Bytes of a file.
pub(super) enum FileBytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Deref for FileBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Opens a file and decompresses it if necessary.
pub(super) fn open(path: &Path, reader: &Reader<'_>) -> Result<FileBytes, Error> {
    let raw = map(path)?;
    if !raw.starts_with(GZIP_MAGIC) && !raw.starts_with(ZSTD_MAGIC) {
        return match is_tar(&raw) {
            true => unpack(path, reader, &raw[..]).map(FileBytes::Owned),
            false => Ok(raw),
        };
    }
    let compressed = Watched { rest: &raw, total: raw.len(), reported: raw.len(), reader };
    let mut text: Box<dyn Read> = if raw.starts_with(GZIP_MAGIC) {
        Box::new(MultiGzDecoder::new(io::BufReader::new(compressed)))
    } else {
        zstd_decoder(compressed).map_err(|e| Error::io("decompress", path, e))?
    };
    let mut start = Vec::with_capacity(TAR_BLOCK);
    let block = (&mut text).take(TAR_BLOCK as u64).read_to_end(&mut start);
    block.map_err(|e| Error::io("decompress", path, e))?;
    let archive = is_tar(&start);
    let text = io::Cursor::new(start).chain(text);
    let text = if archive { unpack(path, reader, text) } else { read_all(path, reader, text) };
    text.map(FileBytes::Owned)
}

#[cfg(feature = "zstd")]
fn zstd_decoder(compressed: Watched<'_>) -> io::Result<Box<dyn Read + '_>> {
    Ok(Box::new(zstd::Decoder::new(compressed)?))
}

#[cfg(not(feature = "zstd"))]
fn zstd_decoder(_: Watched<'_>) -> io::Result<Box<dyn Read>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, super::NO_ZSTD))
}

/// Maps a file, or reads one that cannot be mapped: a pipe, or a file that reports size 0 as those
/// of `/proc` do.
fn map(path: &Path) -> Result<FileBytes, Error> {
    let mut file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    let metadata = file.metadata().map_err(|e| Error::io("open", path, e))?;
    if metadata.is_dir() {
        return Err(Error::io("read", path, io::ErrorKind::IsADirectory.into()));
    }
    if metadata.len() > 0 {
        // SAFETY: the map is private and only read. Another process that changes the file meanwhile
        // may change the mapped bytes, which a parser of bytes tolerates; one that truncates it
        // raises SIGBUS, which the documentation of `memmap2` accepts because it cannot be
        // prevented.
        if let Ok(map) = unsafe { Mmap::map(&file) } {
            return Ok(FileBytes::Mapped(map));
        }
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|e| Error::io("read", path, e))?;
    Ok(FileBytes::Owned(bytes))
}

fn is_tar(start: &[u8]) -> bool {
    let (offset, magic) = TAR_MAGIC;
    start.get(offset..).is_some_and(|rest| rest.starts_with(magic)) && !has_banner(start)
}

/// Reads decompressed bytes to their end, up to the limit.
fn read_all(path: &Path, reader: &Reader<'_>, text: impl Read) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let limit = reader.memory_limit;
    text.take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io("decompress", path, e))?;
    if bytes.len() as u64 > limit {
        let problem =
            ParseProblem::new(format!("the decompressed text is above the limit of {limit} bytes"));
        return Err(problem.locate(path, &[]));
    }
    Ok(bytes)
}

/// Extracts the matrix from an archive: the file `NAME.mtx` of a folder or an archive `NAME`, else
/// the only `.mtx`.
fn unpack(path: &Path, reader: &Reader<'_>, archive: impl Read) -> Result<Vec<u8>, Error> {
    let broken = |e| Error::io("unpack", path, e);
    let mut archive = tar::Archive::new(archive);
    let (mut names, mut text, mut wanted) = (Vec::<PathBuf>::new(), None, false);
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let name = entry.path().map_err(broken)?.into_owned();
        if !entry.header().entry_type().is_file() || !is_plain_matrix(&name) {
            continue;
        }
        wanted = is_namesake(&name, path);
        names.push(name);
        if wanted || names.len() == 1 {
            let size = entry.size();
            let bytes = read_all(path, reader, &mut entry)?;
            // The archive reader does not report a file that ends early.
            if (bytes.len() as u64) < size {
                return Err(broken(io::ErrorKind::UnexpectedEof.into()));
            }
            text = Some(bytes);
        }
        if wanted {
            break;
        }
    }
    // The checksum of the data is at the end.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(broken)?;
    text.filter(|_| wanted || names.len() == 1).ok_or_else(|| no_choice(&names).locate(path, &[]))
}

/// Error: none of the matrices in an archive was selected.
fn no_choice(names: &[PathBuf]) -> ParseProblem {
    if names.is_empty() {
        return ParseProblem::new("the archive has no .mtx file");
    }
    let names: Vec<_> = names.iter().map(|name| name.display().to_string()).collect();
    let message =
        "the archive has several .mtx files and none is named like its folder; unpack one of";
    ParseProblem::new(format!("{message} {}", names.join(", ")))
}

/// True if a file in an archive is a matrix; names with a leading dot are added by macOS.
fn is_plain_matrix(name: &Path) -> bool {
    let hidden = name.file_name().is_none_or(|file| file.as_encoded_bytes().starts_with(b"."));
    !hidden && name.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("mtx"))
}

/// True if a file in an archive is named like its folder or like the archive.
fn is_namesake(name: &Path, archive: &Path) -> bool {
    let stem = name.file_stem().unwrap_or_default();
    let folder = name.parent().and_then(Path::file_name);
    let archive = archive.file_name().unwrap_or_default().to_string_lossy();
    let archive =
        [".tar.gz", ".tgz", ".tar.zst", ".tar"].iter().find_map(|end| archive.strip_suffix(end));
    folder == Some(stem) || archive.is_some_and(|archive| archive == stem)
}

/// Compressed bytes whose reading is reported as progress.
struct Watched<'a> {
    rest: &'a [u8],
    total: usize,
    /// Bytes that were left at the last report.
    reported: usize,
    reader: &'a Reader<'a>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        /// Bytes between reports.
        const STEP: usize = 1 << 20;
        let len = self.rest.read(buffer)?;
        if self.reported - self.rest.len() >= STEP || (len > 0 && self.rest.is_empty()) {
            self.reported = self.rest.len();
            let done = self.total - self.rest.len();
            self.reader.report(ReadStage::Decompress, done as u64, self.total as u64);
        }
        Ok(len)
    }
}
