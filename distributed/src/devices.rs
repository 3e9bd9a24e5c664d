//! Devices of the parts of an operator.

use sparseop::Device;

/// Devices of the parts of an operator, one for each part: the CPU, whose threads they share, or
/// different GPUs that access each other's memory.
///
/// ```
/// use sparseop_distributed::Devices;
///
/// assert_eq!(Devices::cpu(4).len(), 4);
/// assert!(!Devices::all().is_empty());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Devices(Vec<Device>);

impl Devices {
    /// All usable GPUs; a part on the CPU if there is none.
    pub fn all() -> Self {
        match Device::gpus() {
            gpus if gpus.is_empty() => Self::cpu(1),
            gpus => Self(gpus),
        }
    }

    /// A number of parts on the CPU.
    pub fn cpu(parts: usize) -> Self {
        Self(vec![Device::Cpu; parts])
    }

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is no part.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The device of each part.
    pub(crate) fn as_slice(&self) -> &[Device] {
        &self.0
    }

    /// True if a part is on a GPU.
    pub(crate) fn has_gpu(&self) -> bool {
        self.0.iter().any(|device| *device != Device::Cpu)
    }
}

impl From<usize> for Devices {
    /// A number of parts on the CPU.
    fn from(parts: usize) -> Self {
        Self::cpu(parts)
    }
}

impl From<&Self> for Devices {
    fn from(devices: &Self) -> Self {
        devices.clone()
    }
}

impl From<Vec<Device>> for Devices {
    /// A part on each device.
    fn from(devices: Vec<Device>) -> Self {
        Self(devices)
    }
}
