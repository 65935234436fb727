//! What the kernel says about a running process.

use std::fs;
use std::time::Duration;

/// Processor time that a process has used, in whole ticks of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuTime {
    /// By its own threads.
    pub own: Duration,
    /// By children that have ended and were waited for.
    pub children: Duration,
}

/// Processor time of process `id`; `None` if there is no such process.
pub fn cpu_time(id: u32) -> Option<CpuTime> {
    let columns = stat_columns(&format!("/proc/{id}/stat"))?;
    // SAFETY: sysconf has no preconditions.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let seconds = |at: usize| Some(columns.get(at)?.parse::<f64>().ok()? / per_second);
    let both = |user: usize| Some(Duration::from_secs_f64(seconds(user)? + seconds(user + 1)?));
    Some(CpuTime { own: both(11)?, children: both(13)? })
}

/// Columns of a `stat` file behind the name in parentheses: the state is the first.
pub(crate) fn stat_columns(path: &str) -> Option<Vec<String>> {
    let stat = fs::read_to_string(path).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Resident memory of process `id`, in KiB; `None` if there is no such process.
pub fn resident_kib(id: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
