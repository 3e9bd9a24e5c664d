//! Launchers of parallel jobs.

/// Variables that launchers set to the number of processes: Open MPI, MPICH and others with its
/// process manager, Slurm.
const SIZES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// Number of processes of the job, if a launcher started this one. Slurm starts single programs,
/// too: one process is then no job.
pub(super) fn ranks() -> Option<usize> {
    ranks_in(|variable| std::env::var(variable).ok())
}

/// Refuses to run as one of several processes that would all do the same.
///
/// # Errors
///
/// In a job of several processes.
#[cfg(not(feature = "mpi"))]
pub(super) fn refuse_jobs() -> anyhow::Result<()> {
    if let Some(ranks) = ranks().filter(|ranks| *ranks > 1) {
        anyhow::bail!(
            "this is one of {ranks} processes of a job, but the program was built without MPI; \
             build it with `--features mpi`, or start one process"
        );
    }
    Ok(())
}

fn ranks_in(value: impl Fn(&str) -> Option<String>) -> Option<usize> {
    let size = |variable: &&str| value(variable)?.parse::<usize>().ok();
    let found = SIZES.iter().find_map(|variable| Some((variable, size(variable)?)));
    found.filter(|(variable, size)| *size > 1 || **variable != SIZES[2]).map(|(_, size)| size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_tell_the_number_of_ranks() {
        let found = |set: &[(&str, &str)]| {
            ranks_in(|variable| {
                let found = set.iter().find(|(name, _)| *name == variable);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("OMPI_COMM_WORLD_SIZE", "1")]), Some(1));
        assert_eq!(found(&[("PMI_SIZE", "4")]), Some(4));
        assert_eq!(found(&[("SLURM_STEP_NUM_TASKS", "1")]), None);
        assert_eq!(found(&[("SLURM_STEP_NUM_TASKS", "8")]), Some(8));
    }
}
