//! Measurements in files: a line of RON each, after a line that says where they come from.
//!
//! The journal of a run grows by a line for every matrix and is what the next run goes on from; the measurements of a finished
//! one can be kept, compressed, to fit other profiles to them without measuring again.

use super::super::console::Console;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sparseop::tuning::offline::Measured;
use sparseop::tuning::refit::Provenance;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The version of the lines.
const LAYOUT: u32 = 1;

/// What compressed files begin with (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Bytes that a file has at most when it is unpacked: records of some hundred thousand matrices.
const MAX_BYTES: u64 = 1 << 30;

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    layout: u32,
    /// How long and how often plans were run.
    policy: String,
    /// Where the measurements come from.
    pub(super) provenance: Provenance,
}

impl Header {
    pub(super) fn new(policy: String, provenance: Provenance) -> Self {
        Self { layout: LAYOUT, policy, provenance }
    }

    /// Why measurements under this header cannot stand beside those under another; none when they can.
    fn differs(&self, other: &Self) -> Option<&'static str> {
        let (ours, theirs) = (&self.provenance, &other.provenance);
        if self.layout != other.layout {
            Some("it is of another version of the program")
        } else if ours.device != theirs.device {
            Some("it is of another device")
        } else if ours.kernels != theirs.kernels {
            Some("it is of kernels of another version")
        } else if self.policy != other.policy {
            Some("its plans were run for another time")
        } else {
            None
        }
    }
}

/// What a file holds.
struct Contents {
    header: Header,
    measured: Vec<Measured>,
    /// Bytes of the lines that could be read.
    good: u64,
    /// Why the rest could not, if there is any.
    broken: Option<String>,
}

/// Reads lines until one is broken.
fn read_lines(reader: impl BufRead) -> Result<Contents> {
    let mut reader = reader.take(MAX_BYTES);
    let mut line = String::new();
    let mut good = 0;
    // None at the end, and for a last line that was not finished.
    let mut next = |line: &mut String| -> io::Result<Option<u64>> {
        line.clear();
        let bytes = reader.read_line(line)? as u64;
        Ok(line.ends_with('\n').then_some(bytes))
    };
    let Some(bytes) = next(&mut line)? else { bail!("it has no line that says where it comes from") };
    let header: Header = ron::from_str(&line).context("its first line does not say where it comes from")?;
    if header.layout != LAYOUT {
        bail!("it has layout {}, and this program reads {LAYOUT}", header.layout);
    }
    good += bytes;
    let (mut measured, mut broken) = (Vec::new(), None);
    while let Some(bytes) = next(&mut line)? {
        let parsed = ron::from_str::<Measured>(&line).map_err(|error| error.to_string());
        match parsed.and_then(|m| m.defect().map_or(Ok(m), Err)) {
            Ok(one) => measured.push(one),
            Err(reason) => {
                broken = Some(format!("line {}: {reason}", measured.len() + 2));
                break;
            }
        }
        good += bytes;
    }
    if broken.is_none() && !line.is_empty() {
        broken = Some(format!("line {} was not finished", measured.len() + 2));
    }
    Ok(Contents { header, measured, good, broken })
}

/// Reads measurements that were kept, compressed or not.
pub(super) fn read(path: &Path, console: &Console) -> Result<(Header, Vec<Measured>)> {
    let reading = || format!("cannot use the measurements in {}", path.display());
    let mut file = File::open(path).with_context(reading)?;
    let mut magic = Vec::new();
    (&mut file).take(ZSTD_MAGIC.len() as u64).read_to_end(&mut magic).with_context(reading)?;
    file.rewind().with_context(reading)?;
    let contents = if magic == ZSTD_MAGIC {
        read_lines(BufReader::new(zstd::Decoder::new(file).with_context(reading)?))
    } else {
        read_lines(BufReader::new(file))
    };
    let contents = contents.with_context(reading)?;
    if let Some(broken) = &contents.broken {
        console.warn(&format!("{} is read as far as it goes: {broken}", path.display()));
    }
    Ok((contents.header, contents.measured))
}

/// Reads several files of measurements on one device.
pub(super) fn read_all(paths: &[PathBuf], console: &Console) -> Result<(Header, Vec<Measured>)> {
    let [first, others @ ..] = paths else { bail!("there is no file of measurements") };
    let (header, mut measured) = read(first, console)?;
    for path in others {
        let (other, more) = read(path, console)?;
        if let Some(reason) = header.differs(&other) {
            bail!("{} does not go with {}: {reason}", path.display(), first.display());
        }
        measured.extend(more);
    }
    Ok((header, measured))
}

/// A line of RON.
fn line(value: &impl Serialize) -> Result<String> {
    Ok(ron::to_string(value)? + "\n")
}

/// Keeps measurements in a file, compressed where its name ends in `.zst`.
pub(super) fn write(path: &Path, header: &Header, measured: &[Measured]) -> Result<()> {
    let mut text = line(header)?;
    for one in measured {
        text += &line(one)?;
    }
    let zst = path.extension().is_some_and(|e| e == "zst");
    let bytes = if zst { zstd::encode_all(text.as_bytes(), LEVEL)? } else { text.into_bytes() };
    Ok(sparseop::write_atomically(path, |out| out.write_all(&bytes))?)
}

/// Small files, and still at hundreds of megabytes a second.
const LEVEL: i32 = 9;

/// The journal of a run.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens the journal at `path` and gives what an earlier run measured; where there is none, or one that does not fit, begins anew.
    pub(super) fn open(
        path: PathBuf,
        header: &Header,
        fresh: bool,
        console: &Console,
    ) -> Result<(Self, Vec<Measured>)> {
        let opening = || format!("cannot keep the journal {}", path.display());
        let options = || File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = options().with_context(opening)?;
        let mut kept = Vec::new();
        let mut good = 0;
        let is_new = file.metadata().with_context(opening)?.len() == 0;
        if !fresh && !is_new {
            let found = read_lines(BufReader::new(&file)).map_err(|error| error.to_string());
            let usable =
                found.and_then(|c| c.header.differs(header).map_or(Ok(c), |reason| Err(reason.to_owned())));
            match usable {
                Ok(contents) => (kept, good) = (contents.measured, contents.good),
                Err(reason) => console.note(&format!("{} is begun anew: {reason}", path.display())),
            }
        }
        file.set_len(good).with_context(opening)?;
        file.seek(SeekFrom::End(0)).with_context(opening)?;
        let mut journal = Self { path, file };
        if good == 0 {
            journal.add(&line(header)?)?;
        }
        Ok((journal, kept))
    }

    /// Adds the measurements of a matrix; when this returns they are on the disk.
    pub(super) fn append(&mut self, measured: &Measured) -> Result<()> {
        self.add(&line(measured)?)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.with_context(|| format!("cannot write to {}", self.path.display()))
    }

    /// Removes it: what it was for is done.
    pub(super) fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path)
            .with_context(|| format!("cannot remove the journal {}", self.path.display()))
    }
}
