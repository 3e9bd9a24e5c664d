//! Measurements in files: one line of RON each, after a header line with their origin.
//!
//! The journal of a campaign has one line per matrix, and an interrupted campaign continues from
//! it. The measurements of a finished campaign can be stored, compressed, and fitted again.

use crate::offline::Measured;
use crate::refit::Provenance;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Version of the layout of the lines.
const LAYOUT: u32 = 1;

/// First bytes of compressed files (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Largest size of an unpacked file, in bytes: records of some hundred thousand matrices.
const MAX_BYTES: u64 = 1 << 30;

/// First line: origin of the measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasurementsHeader {
    layout: u32,
    /// Policy of the timing runs.
    policy: String,
    /// Origin of the measurements.
    pub provenance: Provenance,
}

impl MeasurementsHeader {
    /// Creates the header of measurements by a policy.
    pub fn new(policy: String, provenance: Provenance) -> Self {
        Self { layout: LAYOUT, policy, provenance }
    }

    /// Reason why measurements under this header cannot be combined with those under `other`;
    /// `None` if they can.
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

/// Contents of a file.
struct Contents {
    header: MeasurementsHeader,
    measured: Vec<Measured>,
    /// Bytes of the readable lines.
    good: u64,
    /// Reason why the rest is not readable, if there is a rest.
    broken: Option<String>,
}

/// Reads lines up to the first damaged one.
fn read_lines(reader: impl BufRead) -> Result<Contents> {
    let mut reader = reader.take(MAX_BYTES);
    let mut line = String::new();
    let mut good = 0;
    // `None` at the end, and for an unfinished last line.
    let mut next = |line: &mut String| -> io::Result<Option<u64>> {
        line.clear();
        let bytes = reader.read_line(line)? as u64;
        Ok(line.ends_with('\n').then_some(bytes))
    };
    let Some(bytes) = next(&mut line)? else { bail!("its header line is missing") };
    let header: MeasurementsHeader = ron::from_str(&line).context("its header line is invalid")?;
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

/// Stored measurements of one device.
pub struct StoredMeasurements {
    /// Origin of the measurements.
    pub header: MeasurementsHeader,
    /// The measurements.
    pub measured: Vec<Measured>,
    /// One sentence for each file that was only read in part.
    pub incomplete: Vec<String>,
}

/// Reads stored measurements, compressed or not.
fn read(path: &Path) -> Result<StoredMeasurements> {
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
    let incomplete = |broken| format!("{} is read as far as it goes: {broken}", path.display());
    let Contents { header, measured, broken, .. } = contents;
    Ok(StoredMeasurements {
        header,
        measured,
        incomplete: broken.into_iter().map(incomplete).collect(),
    })
}

/// Reads several files of measurements on one device.
///
/// # Errors
///
/// An error if a file cannot be read, or if its measurements cannot be combined with those of the
/// first.
pub fn read_all(paths: &[PathBuf]) -> Result<StoredMeasurements> {
    let [first, others @ ..] = paths else { bail!("there is no file of measurements") };
    let mut kept = read(first)?;
    for path in others {
        let other = read(path)?;
        if let Some(reason) = kept.header.differs(&other.header) {
            bail!("{} does not go with {}: {reason}", path.display(), first.display());
        }
        kept.measured.extend(other.measured);
        kept.incomplete.extend(other.incomplete);
    }
    Ok(kept)
}

/// Formats a line of RON.
fn line(value: &impl Serialize) -> Result<String> {
    Ok(ron::to_string(value)? + "\n")
}

/// Writes measurements to a file, compressed if its name ends in `.zst`.
///
/// # Errors
///
/// An error if the file cannot be written.
pub fn write(path: &Path, header: &MeasurementsHeader, measured: &[Measured]) -> Result<()> {
    let mut text = line(header)?;
    for one in measured {
        text += &line(one)?;
    }
    let zst = path.extension().is_some_and(|e| e == "zst");
    let bytes = if zst { zstd::encode_all(text.as_bytes(), LEVEL)? } else { text.into_bytes() };
    Ok(sparseop::write_atomically(path, |out| out.write_all(&bytes))?)
}

/// A level for small files at hundreds of megabytes per second.
const LEVEL: i32 = 9;

/// The journal of a campaign.
pub struct Journal {
    path: PathBuf,
    file: File,
}

/// An opened journal.
pub struct Opened {
    /// The journal.
    pub journal: Journal,
    /// The measurements of an interrupted campaign.
    pub measured: Vec<Measured>,
    /// One sentence if an existing journal was discarded.
    pub discarded: Option<String>,
}

impl Journal {
    /// Opens the journal at `path`. A journal under another header is discarded, and any journal if
    /// `fresh`.
    ///
    /// # Errors
    ///
    /// An error if the file cannot be read or written.
    pub fn open(path: PathBuf, header: &MeasurementsHeader, fresh: bool) -> Result<Opened> {
        let opening = || format!("cannot keep the journal {}", path.display());
        let options =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = options().with_context(opening)?;
        let (mut measured, mut discarded) = (Vec::new(), None);
        let mut good = 0;
        let is_new = file.metadata().with_context(opening)?.len() == 0;
        if !fresh && !is_new {
            let found = read_lines(BufReader::new(&file)).map_err(|error| error.to_string());
            let usable = found.and_then(|c| {
                c.header.differs(header).map_or(Ok(c), |reason| Err(reason.to_owned()))
            });
            match usable {
                Ok(contents) => (measured, good) = (contents.measured, contents.good),
                Err(reason) => {
                    discarded = Some(format!("{} is restarted: {reason}", path.display()))
                }
            }
        }
        file.set_len(good).with_context(opening)?;
        file.seek(SeekFrom::End(0)).with_context(opening)?;
        let mut journal = Self { path, file };
        if good == 0 {
            journal.add(&line(header)?)?;
        }
        Ok(Opened { journal, measured, discarded })
    }

    /// Appends the measurements of a matrix and flushes them to disk.
    ///
    /// # Errors
    ///
    /// An error if the file cannot be written.
    pub fn append(&mut self, measured: &Measured) -> Result<()> {
        self.add(&line(measured)?)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.with_context(|| format!("cannot write to {}", self.path.display()))
    }

    /// Removes the journal of a finished campaign.
    ///
    /// # Errors
    ///
    /// An error if the file cannot be removed.
    pub fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path)
            .with_context(|| format!("cannot remove the journal {}", self.path.display()))
    }
}
