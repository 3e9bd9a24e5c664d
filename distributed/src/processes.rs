//! GPUs of ranks that are processes.

use crate::comm::{Communicator, agree, gather_bytes, gather_words};
use sparseop::device::peers::{PLACE_WORDS, PeerGroup, free_unmapped, new_group, unmapped_groups};
use sparseop::{Device, Error};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Device, host and process of a rank, as words that the ranks exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RankPlace {
    /// 1 on a GPU.
    is_gpu: u64,
    host: u64,
    process: u64,
    gpu: [u64; 2],
    /// Number for a group of which this is the first rank.
    group: u64,
    /// 1 if NCCL is found.
    has_nccl: u64,
    /// 1 if NCCL is to be used on one host, too.
    wants_nccl: u64,
}

/// Words of a place.
const WORDS: usize = 8;

impl RankPlace {
    /// The place of this rank.
    fn of(device: &Device, nccl: bool) -> Result<Self, Error> {
        let is_gpu = *device != Device::Cpu;
        let gpu = if is_gpu { PeerGroup::identity(device)? } else { [0; 2] };
        Ok(Self {
            is_gpu: u64::from(is_gpu),
            host: host(),
            process: u64::from(std::process::id()),
            gpu,
            group: new_group(),
            has_nccl: u64::from(is_gpu && PeerGroup::has_network()),
            wants_nccl: u64::from(nccl),
        })
    }

    fn words(self) -> [u64; WORDS] {
        let Self { is_gpu, host, process, gpu, group, has_nccl, wants_nccl } = self;
        [is_gpu, host, process, gpu[0], gpu[1], group, has_nccl, wants_nccl]
    }

    fn of_words(words: &[u64]) -> Self {
        Self {
            is_gpu: words[0],
            host: words[1],
            process: words[2],
            gpu: [words[3], words[4]],
            group: words[5],
            has_nccl: words[6],
            wants_nccl: words[7],
        }
    }
}

/// A GPU for the part of this rank: the ranks of a host have one each, in the order of the ranks
/// and of the GPUs that a rank sees. If it sees one alone, it has that one. All ranks call it.
///
/// # Errors
///
/// [`Error::DeviceUnavailable`] if a host has fewer GPUs than ranks, or if the ranks are on
/// different hosts without NCCL; [`Error::Gpu`] if the GPUs cannot access each other's memory and
/// there is no NCCL; [`Error::RankFailed`] and [`Error::Communication`].
pub fn gpu_of_rank(comm: &dyn Communicator) -> Result<Device, Error> {
    let (rank, found, own) = (comm.rank(), Device::gpu_count(), host());
    let hosts = gather_words(comm, &[own])?;
    let ranks = |of: &[Vec<u64>]| of.iter().filter(|host| host[0] == own).count();
    let (before, here) = (ranks(&hosts[..rank]), ranks(&hosts));
    let own = match found {
        1 => Device::cuda(0),
        _ if before < found => Device::cuda(before),
        _ => {
            let reason = format!("there are {found} GPUs for {here} ranks of a host");
            Err(Error::DeviceUnavailable { device: format!("cuda:{before}"), reason })
        }
    };
    let own = agree(comm, own)?;
    group_of_ranks(comm, &own, Duration::MAX, false).map(|_| own)
}

/// The GPUs of all ranks, of which this one has `device`; `None` if the parts are on the CPU. NCCL
/// transfers elements if one GPU cannot access the memory of another one, or if `nccl` is true at a
/// rank.
pub(crate) fn group_of_ranks(
    comm: &dyn Communicator,
    device: &Device,
    limit: Duration,
    nccl: bool,
) -> Result<Option<Arc<PeerGroup>>, Error> {
    let own = agree(comm, RankPlace::of(device, nccl))?;
    let words = gather_words(comm, &own.words())?;
    let all: Vec<RankPlace> = words.iter().map(|words| RankPlace::of_words(words)).collect();
    if all.iter().all(|place| place.is_gpu == 0) {
        return Ok(None);
    }
    if let Some(reason) = refusal(&all) {
        return Err(Error::DeviceUnavailable { device: device.to_string(), reason });
    }
    let limit = comm.time_limit().map_or(limit, |most| most.min(limit));
    if !needs_nccl(&all) {
        let mapped = mapped_group(comm, device, all[0].group, limit)?;
        let of_all = gather_words(comm, &[u64::from(mapped.is_ok())])?;
        let is_mapped = of_all.iter().all(|words| words[0] == 1);
        if is_mapped || all.iter().any(|place| place.has_nccl == 0) {
            return agree(comm, mapped).map(Some);
        }
    }
    network_group(comm, device, &all, limit).map(Some)
}

/// A group of ranks of a host, or the error of this rank if it cannot map the memory of the others.
fn mapped_group(
    comm: &dyn Communicator,
    device: &Device,
    group: u64,
    limit: Duration,
) -> Result<Result<Arc<PeerGroup>, Error>, Error> {
    let (rank, ranks) = (comm.rank(), comm.size());
    // Memory of earlier groups that all processes have left.
    let ended = unmapped_groups(ranks);
    let of_all = gather_bytes(comm, bytemuck::cast_slice(&ended))?;
    let has_left = |group: &&u64| {
        of_all.iter().all(|groups| groups.chunks_exact(8).any(|own| *own == group.to_ne_bytes()))
    };
    free_unmapped(&ended.iter().filter(has_left).copied().collect::<Vec<_>>());
    let group = PeerGroup::of_process(device, rank, ranks, group, limit);
    let group = group.and_then(|group| Ok((group.sample_place()?, group)));
    let place = group.as_ref().map_or([0; PLACE_WORDS], |(place, _)| *place);
    let of_all = gather_words(comm, &place)?;
    Ok(group.and_then(|(_, group)| {
        of_all.iter().enumerate().try_for_each(|(other, words)| {
            let (place, _) = words.as_chunks();
            group.address(other, place[0]).map(|_| ())
        })?;
        Ok(group)
    }))
}

/// A group of ranks whose elements NCCL transfers. Groups of the same ranks have one communicator.
fn network_group(
    comm: &dyn Communicator,
    device: &Device,
    all: &[RankPlace],
    limit: Duration,
) -> Result<Arc<PeerGroup>, Error> {
    let mut hasher = DefaultHasher::new();
    all.iter().for_each(|place| (place.host, place.process, place.gpu).hash(&mut hasher));
    let network = hasher.finish();
    let joined = gather_words(comm, &[u64::from(PeerGroup::has_joined(network))])?;
    let id = match joined.iter().all(|words| words[0] == 1) {
        true => None,
        false => {
            let own = match comm.rank() {
                0 => PeerGroup::new_network().map(|id| id.to_vec()),
                _ => Ok(Vec::new()),
            };
            let of_all = gather_bytes(comm, &agree(comm, own)?)?;
            of_all[0].as_slice().try_into().ok()
        }
    };
    let ranks = [comm.rank(), comm.size()];
    agree(comm, PeerGroup::of_network(device, ranks, network, id, limit))
}

/// True if NCCL transfers the elements between GPUs.
fn needs_nccl(all: &[RankPlace]) -> bool {
    all.iter().any(|place| place.host != all[0].host || place.wants_nccl == 1)
}

/// Reason why the GPUs of the ranks cannot exchange elements.
fn refusal(all: &[RankPlace]) -> Option<String> {
    for (rank, place) in all.iter().enumerate() {
        let same = |other: &RankPlace| (other.host, other.gpu) == (place.host, place.gpu);
        if place.is_gpu != all[0].is_gpu {
            return Some(format!("one of the ranks 0 and {rank} is on a GPU and one on the CPU"));
        }
        if let Some(other) = all[..rank].iter().position(same) {
            return Some(format!("ranks {other} and {rank} have the same GPU"));
        }
    }
    let without = all.iter().position(|place| place.has_nccl == 0)?;
    let other = all.iter().position(|place| place.host != all[0].host);
    needs_nccl(all).then(|| {
        let reason = other.map_or_else(
            || "NCCL is to exchange elements".to_owned(),
            |other| format!("ranks 0 and {other} are on different hosts"),
        );
        format!("{reason}, but rank {without} does not find libnccl.so.2 (LD_LIBRARY_PATH)")
    })
}

/// A number that identifies this host, and differs for each start of it.
fn host() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    boot.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{ThreadRank, on_threads};

    #[test]
    fn refused_ranks_are_named() {
        let of = |is_gpu, host, id, has_nccl| RankPlace {
            is_gpu,
            host,
            process: id,
            gpu: [id; 2],
            group: 7,
            has_nccl,
            wants_nccl: 0,
        };
        assert_eq!(RankPlace::of_words(&of(1, 5, 3, 1).words()), of(1, 5, 3, 1));
        assert_eq!(refusal(&[of(1, 5, 1, 0), of(1, 5, 2, 0)]), None);
        assert_eq!(refusal(&[of(1, 5, 1, 1), of(1, 6, 1, 1)]), None);
        let refused = |all: &[RankPlace]| refusal(all).unwrap();
        let same = [of(1, 5, 1, 0), of(1, 5, 2, 0), of(1, 5, 2, 0)];
        assert!(refused(&same).contains("ranks 1 and 2 have the same GPU"));
        assert!(refused(&[of(1, 5, 1, 0), of(0, 5, 0, 0)]).contains("0 and 1 is on a GPU"));
        let hosts = refused(&[of(1, 5, 1, 1), of(1, 6, 2, 0)]);
        assert!(hosts.contains("0 and 1 are on different hosts, but rank 1 does not find"));
        let wanted = RankPlace { wants_nccl: 1, ..of(1, 5, 1, 0) };
        assert!(refused(&[wanted, of(1, 5, 2, 1)]).contains("but rank 0 does not find"));
    }

    #[test]
    fn ranks_without_gpus_have_none() {
        if Device::gpu_count() > 0 {
            // Threads of one process cannot map memory of each other.
            return;
        }
        let ranks = ThreadRank::group(3, Duration::from_secs(20), None);
        let found = on_threads(&ranks, ranks.clone(), |rank| Ok(gpu_of_rank(&*rank).is_ok()));
        assert_eq!(found.unwrap(), [false; 3]);
    }

    #[test]
    fn ranks_on_the_cpu_have_no_group() {
        let ranks = ThreadRank::group(3, Duration::from_secs(20), None);
        let groups = on_threads(&ranks, ranks.clone(), |rank| {
            group_of_ranks(&*rank, &Device::Cpu, Duration::from_secs(20), false)
        });
        assert!(groups.unwrap().iter().all(Option::is_none));
    }
}
