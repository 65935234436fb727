//! The device's files mounted over `/sys`, for programs that bypass the C library.

use super::{CLASS, DEVICES};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_remount,
};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Gives the calling thread a mount namespace of its own, in which the tree at `root` is mounted
/// ([`mount_over`]). Its children inherit that, and the mounts end with the last of them. To be
/// called before the process has a second thread, or in a thread that ends with the mounts' use.
///
/// # Errors
/// Those of unshare(2) and of [`mount_over`]; the thread may then have the namespace already.
pub fn mount_privately(root: &Path) -> io::Result<()> {
    // SAFETY: takes a number. Descriptors stay valid, and other threads keep their namespace.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Mounts must not propagate to the namespace that this one is a copy of.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount_over(root)
}

/// Mounts the tree at `root` over `/sys`, in the calling thread's mount namespace.
///
/// Both directories of the tree are bound, read-only. Where the kernel has no such directory, an
/// overlay of its parent first provides one, since nothing can be created below `/sys`. If the
/// namespace gets a `sysfs` of a network namespace, mount that before. Needs CAP_SYS_ADMIN in the
/// user namespace that owns the mount namespace, and Linux 5.11 if that is not the initial one.
///
/// # Errors
/// Those of mount(2): `PermissionDenied` without the capability.
pub fn mount_over(root: &Path) -> io::Result<()> {
    for dir in [CLASS, DEVICES] {
        let (source, target) = (root.join(dir), Path::new("/sys").join(dir));
        if !target.is_dir()
            && let (Some(upper), Some(lower)) = (source.parent(), target.parent())
        {
            let upper = escaped(fs::canonicalize(upper)?.as_os_str().as_bytes());
            let layers = [b"lowerdir=", &upper[..], b":", lower.as_os_str().as_bytes()].concat();
            let layers = CString::new(layers)?;
            let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
            mount("longhaul", lower, "overlay", flags, &*layers)?;
        }
        mount_bind(&source, &target)?;
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount_remount(&target, flags, "")?;
    }
    Ok(())
}

/// A path as a layer of an overlay, in whose options colons, commas and backslashes are special.
fn escaped(path: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b':' | b',' | b'\\' => vec![b'\\', *byte],
        _ => vec![*byte],
    };
    path.iter().flat_map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_of_overlay_options_are_escaped() {
        assert_eq!(escaped(b"/tmp/a:b,c\\d"), b"/tmp/a\\:b\\,c\\\\d");
    }
}
