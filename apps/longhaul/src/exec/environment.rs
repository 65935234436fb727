//! The environment that gives programs the device: the library to preload, and the variables that
//! `longhaul_rdma::attach` reads.

use crate::problem::Problem;
use longhaul_lab::{Entrance, preloadable};
use longhaul_rdma::{Attach, attach, sysfs};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the library, in this program's directory.
const LIBRARY: &str = "liblonghaul_preload.so";
/// The loader's list of libraries.
const PRELOAD: &str = "LD_PRELOAD";

/// The variables of a program on the device, and the way into its host's namespaces.
#[derive(Debug)]
pub struct Environment {
    library: PathBuf,
    variables: Vec<(&'static str, String)>,
    entrance: Option<Entrance>,
}

impl Environment {
    /// An environment that loads the library, through `link` if the library's own path cannot be in
    /// LD_PRELOAD.
    pub fn new(link: &Path) -> Result<Self, Problem> {
        let library = preloadable(installed_library()?, link)?;
        Ok(Environment { library, variables: Vec::new(), entrance: None })
    }

    /// Adds a variable.
    pub fn set(&mut self, name: &'static str, value: impl ToString) -> &mut Self {
        self.variables.push((name, value.to_string()));
        self
    }

    /// Makes the program run in the namespaces that `entrance` leads to.
    pub fn enter_by(&mut self, entrance: Option<Entrance>) -> &mut Self {
        self.entrance = entrance;
        self
    }

    /// Moves this process, which must have one thread, into the namespaces, if there are any, and
    /// creates the device's files. In the namespaces it mounts them, for this process and its
    /// children.
    pub fn enter(&mut self) -> Result<(), Problem> {
        let Some(entrance) = self.entrance.take() else {
            self.create_files();
            return Ok(());
        };
        entrance
            .enter()
            .map_err(|error| Problem::plain(format!("cannot enter the host's network: {error}")))?;
        self.create_files();
        let root = self.variables.iter().find(|(name, _)| *name == attach::ENV_COUNTERS);
        if let Some((_, root)) = root
            && let Err(error) = sysfs::mount_privately(Path::new(root))
        {
            eprintln!(
                "longhaul: programs that bypass the C library will not find the device below /sys: \
                 cannot mount {root} there: {error}"
            );
        }
        Ok(())
    }

    /// True if the program runs in the network of a lab host, whatever libraries it loads.
    pub fn has_network(&self) -> bool {
        self.entrance.is_some()
    }

    /// Adds the path MTU, unless the user has set one.
    pub fn set_path_mtu(&mut self, bytes: u32) -> &mut Self {
        match std::env::var_os(attach::ENV_PATH_MTU) {
            Some(_) => self,
            None => self.set(attach::ENV_PATH_MTU, bytes),
        }
    }

    /// Creates the device's files, which programs find below `/sys`. A directory that cannot be
    /// written is not an error: the device works without them. Outside of the host's namespaces the
    /// interface is not seen, and the program creates the files.
    pub fn create_files(&self) {
        if self.entrance.is_some() {
            return;
        }
        let value = |name: &'static str| {
            let own = self.variables.iter().find(|(key, _)| *key == name);
            own.map(|(_, value)| value.clone()).or_else(|| {
                let is_identity = attach::IDENTITY.contains(&name);
                std::env::var(name).ok().filter(|_| !is_identity)
            })
        };
        // The program reports an invalid variable of the user's.
        let Ok(attach) = Attach::from_lookup(value) else { return };
        if let Some(root) = &attach.counters
            && let Err(error) = sysfs::renew(root, &attach)
        {
            eprintln!(
                "longhaul: programs will not find the device below /sys: cannot write {}: {error}",
                root.display()
            );
        }
    }

    /// Libraries to preload: the device's, then the user's others.
    fn preloads(&self) -> OsString {
        let mut preloads = self.library.clone().into_os_string();
        let others = std::env::var_os(PRELOAD).unwrap_or_default();
        // The loader takes spaces for separators too.
        let others = others.as_encoded_bytes().split(|byte| b": ".contains(byte));
        for other in others.filter(|other| !other.is_empty()) {
            // SAFETY: a part of a string of the platform, cut at ASCII characters.
            let other = unsafe { std::ffi::OsStr::from_encoded_bytes_unchecked(other) };
            // This may run in a program of another lab.
            let is_ours = Path::new(other) == self.library || Path::new(other).ends_with(LIBRARY);
            if !is_ours {
                preloads.push(":");
                preloads.push(other);
            }
        }
        preloads
    }

    /// All variables with their values.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let own = self.variables.iter().map(|(name, value)| (*name, OsString::from(value)));
        std::iter::once((PRELOAD, self.preloads())).chain(own).collect()
    }

    /// Variables of an enclosing environment that this one must not inherit.
    pub fn unset(&self) -> impl Iterator<Item = &'static str> + '_ {
        let is_set = |name: &&str| self.variables.iter().any(|(key, _)| key == name);
        attach::IDENTITY.into_iter().filter(move |name| !is_set(name))
    }

    /// Adds the environment to `command`.
    pub fn apply(self, command: &mut Command) {
        for name in self.unset() {
            command.env_remove(name);
        }
        command.envs(self.variables());
        let Some(entrance) = self.entrance else { return };
        // SAFETY: between fork and exec only the entrance's calls are made, which are
        // async-signal-safe, on descriptors that the closure owns.
        unsafe {
            command.pre_exec(move || entrance.enter());
        }
    }
}

/// The library in this program's directory.
fn installed_library() -> Result<PathBuf, Problem> {
    let program =
        std::env::current_exe().map_err(|e| Problem::io("find", Path::new("this program"), &e))?;
    let beside = program.with_file_name(LIBRARY);
    if beside.exists() {
        return Ok(beside);
    }
    Err(Problem::new(
        format!("{} is missing", beside.display()),
        "build it with 'cargo build --release -p longhaul-preload', or copy it there",
    ))
}
