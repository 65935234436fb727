//! Which file of the device a path names.
//!
//! Paths are resolved as the kernel resolves them, without asking it: the directories above the
//! device are no links, and the links in the tree are known. A path with `..` after other
//! directories is left to the kernel.

/// Components that the deepest path of the tree stays below.
const DEPTH_MAX: usize = 32;
const CLASS: [&[u8]; 3] = [b"sys", b"class", b"infiniband"];
const DEVICES: [&[u8]; 4] = [b"sys", b"devices", b"virtual", b"infiniband"];
const DEVICE: &[u8] = b"longhaul0";
const SUBSYSTEM: &[u8] = b"subsystem";
/// Names of the directories in that of the device.
const DIRECTORIES: [&[u8]; 9] = [
    b"ports",
    b"1",
    b"gids",
    b"pkeys",
    b"gid_attrs",
    b"types",
    b"ndevs",
    b"counters",
    b"hw_counters",
];
/// A component of every path to the device contains it.
const MARK: &[u8] = b"infiniband";

/// The file through which kernel devices take commands.
const COMMANDS: &[u8] = b"/dev/infiniband/uverbs-longhaul0";

/// True if the path is that of the device's command file.
pub(super) fn names_commands(path: &[u8]) -> bool {
    path == COMMANDS
}

/// True if the path may name a file of the device, and must be resolved.
#[inline]
pub(super) fn is_suspect(path: &[u8]) -> bool {
    if path.first() == Some(&b'/') {
        let mut rest = path;
        while let [b'/', more @ ..] | [b'.', b'/', more @ ..] | [b'.', b'.', b'/', more @ ..] = rest
        {
            rest = more;
        }
        if !rest.starts_with(b"sys/") && !rest.starts_with(b"dev/") {
            return false;
        }
    }
    path.len() > MARK.len() - 1 && path.windows(MARK.len()).any(|part| part == MARK)
}

/// Components of an absolute path, with the links of the tree followed.
pub(super) struct Resolved<'a> {
    parts: [&'a [u8]; DEPTH_MAX],
    len: usize,
    /// The path ends with a slash, and names a directory.
    is_directory: bool,
    /// The path leads through a directory of the device, perhaps out again.
    is_through: bool,
}

impl<'a> Resolved<'a> {
    /// Resolves `path`, starting at the absolute path `base` if it is relative. `None` if it does
    /// not lead to or through a directory of the device, or the kernel has to resolve it.
    pub fn of(base: &'a [u8], path: &'a [u8]) -> Option<Self> {
        let mut resolved = Resolved {
            parts: [b""; DEPTH_MAX],
            len: 0,
            is_directory: path.ends_with(b"/") || path.ends_with(b"/."),
            is_through: false,
        };
        if path.first() != Some(&b'/') {
            resolved.walk(base)?;
            resolved.follow_link();
        }
        resolved.walk(path)?;
        if resolved.is_directory {
            resolved.follow_link();
        }
        resolved.is_through.then_some(resolved)
    }

    fn walk(&mut self, path: &'a [u8]) -> Option<()> {
        for part in path.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => continue,
                b".." if !self.is_in_file() => {
                    self.follow_link();
                    if !self.is_plain_directory() {
                        return None;
                    }
                    self.len = self.len.saturating_sub(1);
                }
                // A path beyond a file fails, at the place where the kernel finds that.
                part => {
                    self.follow_link();
                    *self.parts.get_mut(self.len)? = part;
                    self.len += 1;
                    self.is_through |= self.is_of_device();
                }
            }
        }
        Some(())
    }

    fn parts(&self) -> &[&'a [u8]] {
        &self.parts[..self.len]
    }

    fn is_of_device(&self) -> bool {
        self.parts().starts_with(&CLASS) || self.parts().starts_with(&DEVICES)
    }

    /// True for directories that are no links, whose parent is therefore the path before them.
    fn is_plain_directory(&self) -> bool {
        match self.parts() {
            [] | [b"sys"] | [b"sys", _] | [b"sys", b"class" | b"devices", _] => true,
            [b"sys", b"devices", b"virtual", _] => true,
            _ => self.is_of_device(),
        }
    }

    /// True if the path so far leads to or beyond a file of the device that is no directory.
    fn is_in_file(&self) -> bool {
        let Some([DEVICE, inside @ ..]) = self.parts().strip_prefix(&DEVICES) else {
            return false;
        };
        *inside != [SUBSYSTEM] && inside.iter().any(|part| !DIRECTORIES.contains(part))
    }

    /// Follows the link that the path so far ends with, if any.
    fn follow_link(&mut self) {
        match self.parts() {
            [class @ .., DEVICE] if *class == CLASS => {
                self.parts[..DEVICES.len()].copy_from_slice(&DEVICES);
                self.parts[DEVICES.len()] = DEVICE;
                self.len = DEVICES.len() + 1;
            }
            [devices @ .., DEVICE, SUBSYSTEM] if *devices == DEVICES => {
                self.parts[..CLASS.len()].copy_from_slice(&CLASS);
                self.len = CLASS.len();
            }
            _ => {}
        }
    }

    /// Writes the path of a file of the device below `root`, or of another file below `/sys`, and a
    /// zero to `place`. `None` if it does not fit.
    pub fn write(&self, root: &[u8], place: &mut [u8]) -> Option<()> {
        let mut at = 0;
        let mut put = |bytes: &[u8]| -> Option<()> {
            place.get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
            at += bytes.len();
            Some(())
        };
        // The first part is `sys`, whose place the root takes.
        let (root, parts) = match self.parts() {
            [_, below @ ..] if self.is_of_device() => (root, below),
            all => (&b""[..], all),
        };
        put(root)?;
        if parts.is_empty() {
            put(b"/")?;
        }
        for part in parts {
            put(b"/")?;
            put(part)?;
        }
        if self.is_directory {
            put(b"/")?;
        }
        put(b"\0")
    }
}

/// A path below `root` as a path below `/sys`, in place: the new length. `None` for other paths.
pub(super) fn to_sys(root: &[u8], path: &mut [u8]) -> Option<usize> {
    const SYS: &[u8] = b"/sys";
    let rest = path.strip_prefix(root)?;
    if !(rest.is_empty() || rest[0] == b'/') || root.len() < SYS.len() {
        return None;
    }
    let len = SYS.len() + rest.len();
    path.copy_within(root.len().., SYS.len());
    path[..SYS.len()].copy_from_slice(SYS);
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirected(base: &str, path: &str) -> Option<String> {
        if !is_suspect(path.as_bytes()) {
            return None;
        }
        let mut place = [0; 256];
        Resolved::of(base.as_bytes(), path.as_bytes())?.write(b"/t", &mut place)?;
        let len = place.iter().position(|byte| *byte == 0).unwrap();
        Some(String::from_utf8(place[..len].to_vec()).unwrap())
    }

    #[track_caller]
    fn leads(path: &str, to: &str) {
        assert_eq!(redirected("/", path).as_deref(), Some(to), "{path}");
    }

    #[test]
    fn paths_of_the_device_lead_into_the_tree() {
        leads("/sys/class/infiniband", "/t/class/infiniband");
        leads("/sys/class/infiniband/", "/t/class/infiniband/");
        leads("/sys/class/infiniband/longhaul0", "/t/class/infiniband/longhaul0");
        let port = "/t/devices/virtual/infiniband/longhaul0/ports/1";
        leads("/sys/class/infiniband/longhaul0/ports/1", port);
        leads("/sys/devices/virtual/infiniband/longhaul0/ports/1", port);
        leads("//sys/./class///infiniband/longhaul0//ports/./1", port);
        leads("/sys/class/net/../infiniband/longhaul0/ports/1", port);
        leads("/sys/devices/../class/infiniband/longhaul0/ports/1", port);
        leads("/../sys/class/infiniband/nobody", "/t/class/infiniband/nobody");
    }

    #[test]
    fn only_the_path_of_the_command_file_names_it() {
        let path = format!("/dev/infiniband/{}", crate::process::COMMANDS);
        assert!(is_suspect(path.as_bytes()) && names_commands(path.as_bytes()));
        for path in ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs-longhaul0/", "uverbs0"] {
            assert!(!names_commands(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn parents_are_those_behind_the_links() {
        leads("/sys/class/infiniband/longhaul0/..", "/t/devices/virtual/infiniband");
        leads(
            "/sys/class/infiniband/longhaul0/../longhaul0/node_type",
            "/t/devices/virtual/infiniband/longhaul0/node_type",
        );
        leads(
            "/sys/class/infiniband/longhaul0/subsystem/longhaul0",
            "/t/class/infiniband/longhaul0",
        );
        leads("/sys/class/infiniband/longhaul0/", "/t/devices/virtual/infiniband/longhaul0/");
    }

    #[test]
    fn a_path_beyond_a_file_fails_in_the_tree() {
        let device = "/t/devices/virtual/infiniband/longhaul0";
        leads("/sys/class/infiniband/longhaul0/node_type/..", &format!("{device}/node_type/.."));
        leads(
            "/sys/class/infiniband/longhaul0/nobody/../../../../x",
            &format!("{device}/nobody/../../../../x"),
        );
        leads("/sys/class/infiniband/longhaul0/ports/1/../..", device);
    }

    #[test]
    fn a_path_that_leaves_the_device_need_not_lead_through_it() {
        leads("/sys/class/infiniband/../net/lo/address", "/sys/class/net/lo/address");
        leads("/sys/class/infiniband/longhaul0/../../net/lo", "/sys/devices/virtual/net/lo");
        leads("/sys/class/infiniband/..", "/sys/class");
        leads("/sys/class/infiniband/../../..", "/");
        leads("/sys/class/infiniband/../../../tmp/", "/tmp/");
    }

    #[test]
    fn others_are_the_kernels() {
        for path in [
            "/sys/class/net",
            "/sys/class/infiniband_verbs/uverbs0",
            "/etc/infiniband",
            "/dev/infiniband",
            "/dev/infiniband/uverbs-longhaul0",
            "/systems/class/infiniband",
            "/sys/bus/pci/../../class/infiniband",
            "/usr/../sys/class/infiniband",
            "",
            "/",
            "infiniband",
        ] {
            assert_eq!(redirected("/tmp", path), None, "{path}");
        }
    }

    #[test]
    fn relative_paths_start_where_their_directory_is() {
        let of = |base: &str, path: &str| redirected(base, path);
        assert_eq!(of("/sys/class", "infiniband").as_deref(), Some("/t/class/infiniband"));
        assert_eq!(of("/", "sys/class/infiniband").as_deref(), Some("/t/class/infiniband"));
        assert_eq!(of("/sys/class/net", "../infiniband").as_deref(), Some("/t/class/infiniband"));
        assert_eq!(
            of("/sys/devices/virtual", "./infiniband/x").as_deref(),
            Some("/t/devices/virtual/infiniband/x")
        );
        assert_eq!(of("/home", "sys/class/infiniband"), None);
    }

    #[test]
    fn a_path_that_is_too_deep_or_too_long_is_the_kernels() {
        let deep = format!("/sys/class/infiniband/{}", "x/".repeat(40));
        assert_eq!(redirected("/", &deep), None);
        let long = format!("/sys/class/infiniband/{}", "x".repeat(300));
        assert_eq!(redirected("/", &long), None);
    }

    #[test]
    fn paths_of_the_tree_are_shown_as_paths_below_sys() {
        let shown = |path: &str| {
            let mut bytes = path.as_bytes().to_vec();
            let len = to_sys(b"/tmp/tree", &mut bytes)?;
            bytes.truncate(len);
            String::from_utf8(bytes).ok()
        };
        assert_eq!(shown("/tmp/tree/class/infiniband").as_deref(), Some("/sys/class/infiniband"));
        assert_eq!(shown("/tmp/tree").as_deref(), Some("/sys"));
        assert_eq!(shown("/tmp/trees/class"), None);
        assert_eq!(shown("/tmp"), None);
    }
}
