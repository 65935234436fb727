//! The process' tree, and the redirection of a path into it.

use super::path::{Resolved, is_suspect, names_commands, to_sys};
use crate::guard::set_errno;
use crate::process::IBDEV_PATH;
use longhaul_rdma::{Attach, sysfs};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Longest path that the kernel takes, with its zero.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// The root of the tree; `None` if the process has no device, or no directory for its files.
fn root() -> Option<&'static [u8]> {
    thread_local! {
        /// This thread finds the root: file calls of it and of its signal handlers are passed on.
        static FINDS: Cell<bool> = const { Cell::new(false) };
    }
    static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let known = match ROOT.get() {
        Some(known) => known,
        None if FINDS.replace(true) => return None,
        None => {
            let found = ROOT.get_or_init(find);
            FINDS.set(false);
            found
        }
    };
    known.as_ref().map(|root| root.as_os_str().as_bytes())
}

/// Finds the root in the environment, and creates what is missing of the tree or differs: only this
/// process may be in the network namespace that has the device's interface.
fn find() -> Option<PathBuf> {
    // The first verb reports an invalid environment.
    let attach = Attach::from_env().ok()?;
    let root = attach.counters.clone().filter(|root| root.is_absolute())?;
    if root.starts_with("/sys") {
        return None;
    }
    let is_there = || root.join(sysfs::CLASS).join(sysfs::DEVICE).join("ports/1/state").exists();
    if let Err(error) = sysfs::create(&root, &attach)
        && !is_there()
    {
        // The program's stderr may be closed.
        let _ = writeln!(
            std::io::stderr(),
            "longhaul: no {IBDEV_PATH}: cannot write its files to {}: {error}",
            root.display()
        );
    }
    Some(root)
}

/// Calls `call` with `path`, relative to the descriptor `dir`, or with the path of the same file
/// in the tree. The second argument is true in the latter case. `errno` is unchanged before.
///
/// # Safety
/// `path` is null or a C string.
#[inline]
pub(super) unsafe fn redirect<R>(
    dir: c_int,
    path: *const c_char,
    call: impl FnOnce(*const c_char, bool) -> R,
) -> R {
    // SAFETY: the caller's promise.
    if path.is_null() || !is_suspect(unsafe { CStr::from_ptr(path) }.to_bytes()) {
        return call(path, false);
    }
    // SAFETY: as above.
    if names_commands(unsafe { CStr::from_ptr(path) }.to_bytes()) && root().is_some() {
        // UCX and Mooncake use a device only if it has such a file, which they never open.
        return call(c"/dev/null".as_ptr(), false);
    }
    let mut place = [0_u8; PATH_MAX];
    // SAFETY: as above.
    match locate(dir, unsafe { CStr::from_ptr(path) }.to_bytes(), &mut place) {
        Some(()) => call(place.as_ptr().cast(), true),
        None => call(path, false),
    }
}

/// Writes the path of a file of the device in the tree to `place`; `None` for other files.
#[cold]
fn locate(dir: c_int, path: &[u8], place: &mut [u8; PATH_MAX]) -> Option<()> {
    // SAFETY: the location belongs to this thread.
    let errno = unsafe { *libc::__errno_location() };
    let mut base = [0_u8; PATH_MAX];
    let mut located = || {
        if path.len() >= PATH_MAX {
            return None;
        }
        let base = if path.starts_with(b"/") { &[][..] } else { directory(dir, &mut base)? };
        let resolved = Resolved::of(base, path)?;
        resolved.write(root()?, place)
    };
    let located = located();
    set_errno(errno);
    located
}

/// Absolute path of the directory open at `dir`, or of the working directory.
fn directory(dir: c_int, place: &mut [u8; PATH_MAX]) -> Option<&[u8]> {
    let mut link = *b"/proc/self/fd/-2147483648\0";
    let link: &CStr = match dir {
        libc::AT_FDCWD => c"/proc/self/cwd",
        dir => {
            let mut at = &mut link[b"/proc/self/fd/".len()..];
            write!(at, "{dir}\0").ok()?;
            CStr::from_bytes_until_nul(&link).ok()?
        }
    };
    // SAFETY: a C string, and a place of the given length. The system call itself, so that no
    // interposed function calls another.
    let len = unsafe {
        libc::syscall(libc::SYS_readlink, link.as_ptr(), place.as_mut_ptr(), place.len() - 1)
    };
    let len = usize::try_from(len).ok()?;
    let len = with_shown(&mut place[..len]).unwrap_or(len);
    Some(&place[..len])
}

/// Changes a path in the tree to the one below `/sys` that leads there, in place, and returns its
/// length; `None` for other paths.
fn with_shown(path: &mut [u8]) -> Option<usize> {
    // Another process may have changed into the tree, so this one may not know it yet.
    if !path.windows(b"infiniband".len()).any(|part| part == b"infiniband") {
        return None;
    }
    to_sys(root()?, path)
}

/// [`with_shown`] for a C string.
///
/// # Safety
/// `path` is null or a C string in writable memory.
pub(super) unsafe fn show(path: *mut c_char) {
    if path.is_null() {
        return;
    }
    // SAFETY: the location belongs to this thread.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts_mut(path.cast::<u8>(), libc::strlen(path)) };
    if let Some(len) = with_shown(bytes)
        && let Some(end) = bytes.get_mut(len)
    {
        *end = 0;
    }
    set_errno(errno);
}
