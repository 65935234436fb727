//! Dropping the privileges with which a box was started.
//!
//! Opening interfaces needs CAP_NET_RAW or CAP_NET_ADMIN. Moving frames needs no privileges, nor
//! does switching to a recreated interface of the same name. Without them, a box cannot recreate a
//! deleted TAP device, turn receive merging off on a new interface, or restore it at the end.
//! Privileges are per thread, so they are dropped before a second thread exists.

use crate::error::{Cause, PathError};
use nix::errno::Errno;
use nix::unistd::{Gid, Uid, User, geteuid, setgroups, setresgid, setresuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs,
};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{fchown, lchown};
use std::path::Path;
use thiserror::Error;

/// User that root's box becomes by default.
const NOBODY: &str = "nobody";

/// Why privileges cannot be dropped.
#[derive(Debug, Error)]
pub enum PrivilegesError {
    /// A file cannot be given to the user.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A caller other than root asks for another user.
    #[error("only root can become user '{0}'")]
    OnlyRoot(String),
    /// The user database cannot be read.
    #[error("cannot look up user '{name}': {error}")]
    LookUp {
        /// The user's name.
        name: String,
        /// The error of the operating system.
        error: Errno,
    },
    /// There is no such user.
    #[error("there is no user '{0}'")]
    NoUser(String),
    /// The system refuses a step.
    #[error("cannot {action}: {error}")]
    Refused {
        /// The step.
        action: &'static str,
        /// The error of the operating system.
        error: Cause,
    },
    /// All steps succeeded, but privileges remain.
    #[error("privileges remain after they were dropped")]
    StillThere,
}

/// Treatment of privileges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Privileges {
    /// Keep them.
    Keep,
    /// Drop them, and become this user from root.
    Drop(User),
    /// Drop them, and stay the same unprivileged user.
    Clear,
}

impl Privileges {
    /// Decides before any port is opened.
    ///
    /// # Errors
    /// If there is no such user, or the caller may not choose one.
    pub fn decide(user: Option<&str>, keep: bool) -> Result<Self, PrivilegesError> {
        match user {
            _ if keep => Ok(Privileges::Keep),
            Some(name) if !geteuid().is_root() && !is_self(name) => {
                Err(PrivilegesError::OnlyRoot(name.to_string()))
            }
            _ if !geteuid().is_root() => Ok(Privileges::Clear),
            name => {
                let name = name.unwrap_or(NOBODY);
                let found = User::from_name(name)
                    .map_err(|error| PrivilegesError::LookUp { name: name.to_string(), error })?;
                found.map(Privileges::Drop).ok_or_else(|| PrivilegesError::NoUser(name.to_string()))
            }
        }
    }

    /// Lets processes of the box's future user connect to the socket at `path`.
    pub fn hand_over(&self, path: &Path) -> Result<(), PrivilegesError> {
        let Privileges::Drop(user) = self else { return Ok(()) };
        lchown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .map_err(|e| PathError::new("hand over", path, e).into())
    }

    /// Gives `file` to the box's future user. Devices and pipes keep their owner.
    pub fn hand_over_file(&self, file: &File) -> io::Result<()> {
        match self {
            Privileges::Drop(user) if file.metadata()?.is_file() => {
                fchown(file, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            }
            _ => Ok(()),
        }
    }

    /// Applies the decision to this thread and all threads that it starts.
    pub fn apply(&self) -> Result<(), PrivilegesError> {
        if *self == Privileges::Keep {
            return Ok(());
        }
        if let Privileges::Drop(user) = self {
            become_user(user.uid, user.gid)?;
        }
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        // Kernels without ambient capabilities have none to clear.
        let _ = clear_ambient_capability_set();
        set_capabilities(None, sets).map_err(|e| refused("clear capabilities", e.into()))?;
        set_no_new_privs(true).map_err(|e| refused("rule out new privileges", e.into()))?;
        match capabilities(None) {
            Ok(left) if left.permitted.is_empty() && left.effective.is_empty() => Ok(()),
            _ => Err(PrivilegesError::StillThere),
        }
    }
}

/// Becomes another user, from root, with no group but this one.
pub(crate) fn become_user(user: Uid, group: Gid) -> Result<(), PrivilegesError> {
    setgroups(&[]).map_err(|e| refused("leave the groups of root", e.into()))?;
    setresgid(group, group, group).map_err(|e| refused("change the group", e.into()))?;
    setresuid(user, user, user).map_err(|e| refused("change the user", e.into()))
}

fn refused(action: &'static str, error: Cause) -> PrivilegesError {
    PrivilegesError::Refused { action, error }
}

fn is_self(name: &str) -> bool {
    User::from_uid(geteuid()).is_ok_and(|user| user.is_some_and(|user| user.name == name))
}

/// Name of the user that this process runs as.
pub fn user_name() -> String {
    let uid: Uid = geteuid();
    match User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => format!("#{uid}"),
    }
}

impl fmt::Display for Privileges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = user_name();
        match self {
            Privileges::Keep => write!(f, "runs as {user} with its initial privileges"),
            Privileges::Drop(_) | Privileges::Clear => {
                write!(f, "runs as {user} without privileges")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeping_wins() {
        assert_eq!(Privileges::decide(Some("nobody"), true).unwrap(), Privileges::Keep);
    }

    #[test]
    fn a_user_who_is_not_there_is_refused() {
        let refusal = Privileges::decide(Some("no-such-user-here"), false).unwrap_err().to_string();
        assert!(refusal.contains("no-such-user-here"), "{refusal}");
    }
}
