//! DPDK itself, which is started once per process and runs until the process ends.

use crate::error::DpdkError;
use crate::shim;
use std::ffi::{CString, c_char};
use std::fs;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

static STARTED: OnceLock<(String, Result<(), DpdkError>)> = OnceLock::new();
/// Serialises attaching and detaching: a new port is identified by comparison with the previous
/// ones.
static DEVICES: Mutex<()> = Mutex::new(());

/// Starts DPDK with its own arguments, such as `--no-huge -m 1024`, split at spaces. A second call
/// with the same arguments has no effect.
///
/// Defaults that a box must not have are turned off: DPDK uses no device except those that ports
/// name, binds no thread to a processor, leaves no files behind, and starts no telemetry. Its log
/// is kept for error messages, and printed only if the arguments have a `--log-level`.
///
/// # Errors
/// [`DpdkError::NoHugePages`], [`DpdkError::Start`] or [`DpdkError::StartedOtherwise`].
pub fn start(arguments: &str) -> Result<(), DpdkError> {
    let (running, outcome) = STARTED.get_or_init(|| (arguments.to_owned(), start_once(arguments)));
    if running != arguments {
        return Err(DpdkError::StartedOtherwise { running: running.clone() });
    }
    outcome.clone()
}

/// Locks attaching and detaching.
pub(crate) fn devices() -> Result<std::sync::MutexGuard<'static, ()>, DpdkError> {
    match STARTED.get() {
        Some((_, Ok(()))) => Ok(DEVICES.lock().unwrap_or_else(PoisonError::into_inner)),
        _ => Err(DpdkError::NotStarted),
    }
}

fn start_once(arguments: &str) -> Result<(), DpdkError> {
    let all = complete(arguments, &processors());
    if !all.iter().any(|word| word == "--no-huge")
        && !has_huge_pages(Path::new("/sys/kernel/mm/hugepages"))
    {
        return Err(DpdkError::NoHugePages);
    }
    let refused = |reason: String| DpdkError::Start { arguments: all.join(" "), reason };
    let words: Result<Vec<CString>, _> =
        all.iter().map(|word| CString::new(word.as_str())).collect();
    let words = words.map_err(|e| refused(e.to_string()))?;
    let mut pointers: Vec<*mut c_char> =
        words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    let count = i32::try_from(pointers.len()).map_err(|e| refused(e.to_string()))?;
    pointers.push(std::ptr::null_mut());
    let prints = all.iter().any(|word| word.starts_with("--log-level"));
    // SAFETY: no preconditions.
    unsafe { shim::lh_keep_log(i32::from(prints)) };
    // SAFETY: `count` pointers to zero-terminated words, and a null one behind them, that stay
    // until the process ends.
    let done = unsafe { shim::lh_init(count, pointers.as_mut_ptr()) };
    // DPDK may keep pointers to its arguments.
    std::mem::forget((words, pointers));
    if done < 0 { Err(refused(reason(done))) } else { Ok(()) }
}

/// The user's arguments, and those that a box adds.
fn complete(arguments: &str, processors: &str) -> Vec<String> {
    let given: Vec<&str> = arguments.split_whitespace().collect();
    let has =
        |names: &[&str]| given.iter().any(|word| names.iter().any(|name| word.starts_with(name)));
    let mut all = vec!["longhaul".to_owned()];
    if !has(&["-l", "-c", "--lcores"]) {
        // One DPDK thread, the calling one, on any of its processors: by default it would be bound
        // to the first.
        all.push(format!("--lcores=0@({processors})"));
    }
    if !has(&["-a", "--allow", "-b", "--block", "--no-pci"]) {
        // No device has this address, so the list allows only devices that ports name.
        all.push("--allow=0000:00:00.0".to_owned());
    }
    if has(&["--no-huge"]) {
        all.push("--no-shconf".to_owned());
    } else if !has(&["--in-memory", "--file-prefix", "--huge-dir", "--proc-type"]) {
        all.push("--in-memory".to_owned());
    }
    if !has(&["--telemetry"]) {
        all.push("--no-telemetry".to_owned());
    }
    all.extend(given.into_iter().map(str::to_owned));
    all
}

/// Processors that this process may use, as in `0-3,8`.
fn processors() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map_or("0", str::trim).to_owned()
}

/// True if huge pages of some size are free. `sizes` is `/sys/kernel/mm/hugepages`.
fn has_huge_pages(sizes: &Path) -> bool {
    fs::read_dir(sizes).into_iter().flatten().flatten().any(|size| {
        let free = fs::read_to_string(size.path().join("free_hugepages")).unwrap_or_default();
        free.trim().parse::<u64>().is_ok_and(|free| free > 0)
    })
}

/// The first error that DPDK logged since the last call, or else the meaning of the number.
pub(crate) fn reason(error: i32) -> String {
    let mut line = [0_u8; 256];
    // SAFETY: the array has as many bytes as are said.
    unsafe { shim::lh_first_error(line.as_mut_ptr().cast(), line.len()) };
    let said = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let said = String::from_utf8_lossy(said);
    let said = said.lines().next().unwrap_or_default().trim();
    if said.is_empty() {
        std::io::Error::from_raw_os_error(-error).to_string()
    } else {
        said.to_owned()
    }
}

/// Discards the log so far, which does not concern the next operation.
pub(crate) fn forget_log() {
    let mut line = [0_u8; 1];
    // SAFETY: as in `reason`.
    unsafe { shim::lh_first_error(line.as_mut_ptr().cast(), line.len()) };
}

/// Registers the calling thread with DPDK, once, so that it gets a buffer cache. Works without it,
/// but more slowly.
pub(crate) fn know_this_thread() {
    struct Known;
    impl Drop for Known {
        fn drop(&mut self) {
            // SAFETY: no preconditions: a thread that is not registered, or is DPDK's own, is
            // unaffected.
            unsafe { shim::lh_unregister_thread() };
        }
    }
    thread_local! {
        static KNOWN: Known = {
            // SAFETY: DPDK runs, since a port exists. Threads beyond its maximum stay unregistered.
            unsafe { shim::lh_register_thread() };
            Known
        };
    }
    KNOWN.with(|_| ());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_says_is_not_said_twice() {
        let words = |arguments| complete(arguments, "0-1").join(" ");
        assert_eq!(
            words("--no-huge -m 512"),
            "longhaul --lcores=0@(0-1) --allow=0000:00:00.0 --no-shconf --no-telemetry \
             --no-huge -m 512"
        );
        assert_eq!(
            words("--file-prefix=x -l 2 --no-pci"),
            "longhaul --no-telemetry --file-prefix=x -l 2 --no-pci"
        );
        assert!(words("").contains("--in-memory"));
    }

    #[test]
    fn huge_pages_of_any_size_will_do() {
        let sizes = std::env::temp_dir().join(format!("longhaul-huge-{}", std::process::id()));
        assert!(!has_huge_pages(&sizes));
        for (size, free) in [("hugepages-2048kB", "0\n"), ("hugepages-1048576kB", "0\n")] {
            fs::create_dir_all(sizes.join(size)).unwrap();
            fs::write(sizes.join(size).join("free_hugepages"), free).unwrap();
        }
        let none = has_huge_pages(&sizes);
        fs::write(sizes.join("hugepages-2048kB/free_hugepages"), "7\n").unwrap();
        let some = has_huge_pages(&sizes);
        fs::remove_dir_all(&sizes).unwrap();
        assert_eq!((none, some), (false, true));
    }
}
