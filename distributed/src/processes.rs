//! GPUs of ranks that are processes of one host.

use crate::comm::{Communicator, agree, gather_bytes, gather_words};
use sparseop::device::peers::{PeerGroup, free_unmapped, new_group, unmapped_groups};
use sparseop::{Device, Error};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// A GPU for the part of this rank: the ranks have one each, in the order of the ranks and of the
/// GPUs that a rank sees. If it sees one alone, it has that one. All ranks call it.
///
/// # Errors
///
/// [`Error::DeviceUnavailable`] if there are fewer GPUs than ranks, or if the ranks are on
/// different hosts; [`Error::Gpu`] if the GPUs cannot access each other's memory;
/// [`Error::RankFailed`] and [`Error::Communication`].
pub fn gpu_of_rank(comm: &dyn Communicator) -> Result<Device, Error> {
    let (rank, ranks, found) = (comm.rank(), comm.size(), Device::gpu_count());
    let own = match found {
        1 => Device::cuda(0),
        _ if rank < found => Device::cuda(rank),
        _ => {
            let reason = format!("there are {found} GPUs for {ranks} ranks");
            Err(Error::DeviceUnavailable { device: format!("cuda:{rank}"), reason })
        }
    };
    let own = agree(comm, own)?;
    let Some(group) = group_of_ranks(comm, &own, Duration::MAX)? else { return Ok(own) };
    let place = agree(comm, group.sample_place())?;
    let of_all = gather_words(comm, &place)?;
    let mapped = of_all.iter().enumerate().try_for_each(|(other, words)| {
        let (place, _) = words.as_chunks();
        group.address(other, place[0]).map(|_| ())
    });
    agree(comm, mapped)?;
    Ok(own)
}

/// The GPUs of all ranks, of which this one has `device`; `None` if the parts are on the CPU.
pub(crate) fn group_of_ranks(
    comm: &dyn Communicator,
    device: &Device,
    limit: Duration,
) -> Result<Option<Arc<PeerGroup>>, Error> {
    let Some(group) = number_of_group(comm, device)? else { return Ok(None) };
    let (rank, ranks) = (comm.rank(), comm.size());
    // Memory of earlier groups that all processes have left.
    let ended = unmapped_groups(ranks);
    let of_all = gather_bytes(comm, bytemuck::cast_slice(&ended))?;
    let has_left = |group: &&u64| {
        of_all.iter().all(|groups| groups.chunks_exact(8).any(|own| *own == group.to_ne_bytes()))
    };
    free_unmapped(&ended.iter().filter(has_left).copied().collect::<Vec<_>>());
    let limit = comm.time_limit().map_or(limit, |most| most.min(limit));
    agree(comm, PeerGroup::of_process(device, rank, ranks, group, limit)).map(Some)
}

/// Number for a group of the devices of all ranks, after a check that they are different GPUs of
/// one host; `None` if all of them are the CPU.
fn number_of_group(comm: &dyn Communicator, device: &Device) -> Result<Option<u64>, Error> {
    let own = match device {
        Device::Cpu => Ok([0; 2]),
        gpu => PeerGroup::identity(gpu),
    };
    let [first, second] = agree(comm, own)?;
    let is_gpu = u64::from(*device != Device::Cpu);
    let all = gather_words(comm, &[is_gpu, host(), new_group(), first, second])?;
    match refusal(&all) {
        Some(reason) => Err(Error::DeviceUnavailable { device: device.to_string(), reason }),
        None => Ok((is_gpu != 0).then_some(all[0][2])),
    }
}

/// Reason why the GPUs of the ranks cannot access each other's memory.
fn refusal(all: &[Vec<u64>]) -> Option<String> {
    if all.iter().all(|words| words[0] == 0) {
        return None;
    }
    for (rank, words) in all.iter().enumerate() {
        let before = |at: usize| all[..rank].iter().position(|other| other[at..] == words[at..]);
        if words[0] != all[0][0] {
            return Some(format!("one of the ranks 0 and {rank} is on a GPU and one on the CPU"));
        }
        if words[1] != all[0][1] {
            return Some(format!(
                "ranks 0 and {rank} are on different hosts; their parts can be on the CPU alone"
            ));
        }
        if let Some(other) = before(3) {
            return Some(format!("ranks {other} and {rank} have the same GPU"));
        }
    }
    None
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
        let of = |gpu, host, id| vec![gpu, host, 7, id, id];
        assert_eq!(refusal(&[of(1, 5, 1), of(1, 5, 2)]), None);
        assert_eq!(refusal(&[of(0, 5, 0), of(0, 6, 0)]), None);
        let refused = |all: &[Vec<u64>]| refusal(all).unwrap();
        assert!(refused(&[of(1, 5, 1), of(1, 5, 2), of(1, 5, 2)]).contains("ranks 1 and 2 have"));
        assert!(refused(&[of(1, 5, 1), of(0, 5, 0)]).contains("0 and 1 is on a GPU"));
        assert!(refused(&[of(1, 5, 1), of(1, 6, 2)]).contains("0 and 1 are on different hosts"));
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
            group_of_ranks(&*rank, &Device::Cpu, Duration::from_secs(20))
        });
        assert!(groups.unwrap().iter().all(Option::is_none));
    }
}
