//! What a box keeps of the rights that it was started with: none.
//!
//! Opening interfaces takes CAP_NET_RAW or CAP_NET_ADMIN; moving frames takes nothing, nor does
//! going over to an interface that is made anew under the same name. What cannot be done any more:
//! make a TAP device again that was deleted, and turn receive merging off on a new interface, or
//! back on in the end. Rights belong to threads, so they are given up before there is a second one.

use crate::error::{Cause, PathError};
use nix::errno::Errno;
use nix::unistd::{Uid, User, geteuid, setgroups, setresgid, setresuid};
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

/// Whom a box runs as unless told otherwise, when root starts it.
const NOBODY: &str = "nobody";

/// Why rights cannot be given up.
#[derive(Debug, Error)]
pub enum PrivilegesError {
    /// A file cannot be handed over to the user.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Another user is asked for by one who is not root.
    #[error("only root can become user '{0}'")]
    OnlyRoot(String),
    /// Users cannot be looked up.
    #[error("cannot look up user '{name}': {error}")]
    LookUp {
        /// The user's name.
        name: String,
        /// What the system answers.
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
        /// What the system answers.
        error: Cause,
    },
    /// The system did all steps, and the rights are there.
    #[error("privileges are still there after they were given up")]
    StillThere,
}

/// What becomes of the rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Privileges {
    /// They stay.
    Keep,
    /// Given up, and root becomes this user.
    Drop(User),
    /// Given up; the user stays, who is not root.
    Clear,
}

impl Privileges {
    /// Decides, before anything is opened.
    ///
    /// # Errors
    /// When there is no such user, or it is not for this one to choose.
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

    /// Lets the user that this process becomes, and others of that user, connect to the socket at
    /// `path`.
    pub fn hand_over(&self, path: &Path) -> Result<(), PrivilegesError> {
        let Privileges::Drop(user) = self else { return Ok(()) };
        lchown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .map_err(|e| PathError::new("hand over", path, e).into())
    }

    /// Lets the user that this process becomes, and others of that user, have what is in `file`. A
    /// device or a pipe stays whose it is.
    pub fn hand_over_file(&self, file: &File) -> io::Result<()> {
        match self {
            Privileges::Drop(user) if file.metadata()?.is_file() => {
                fchown(file, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            }
            _ => Ok(()),
        }
    }

    /// Carries it out for this thread and all that it starts.
    pub fn apply(&self) -> Result<(), PrivilegesError> {
        if *self == Privileges::Keep {
            return Ok(());
        }
        let refused = |action, error: Cause| PrivilegesError::Refused { action, error };
        if let Privileges::Drop(user) = self {
            setgroups(&[]).map_err(|e| refused("leave the groups of root", e.into()))?;
            setresgid(user.gid, user.gid, user.gid)
                .map_err(|e| refused("change the group", e.into()))?;
            setresuid(user.uid, user.uid, user.uid)
                .map_err(|e| refused("change the user", e.into()))?;
        }
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        // A kernel without them has none to clear.
        let _ = clear_ambient_capability_set();
        set_capabilities(None, sets).map_err(|e| refused("clear capabilities", e.into()))?;
        set_no_new_privs(true).map_err(|e| refused("rule out new privileges", e.into()))?;
        match capabilities(None) {
            Ok(left) if left.permitted.is_empty() && left.effective.is_empty() => Ok(()),
            _ => Err(PrivilegesError::StillThere),
        }
    }
}

fn is_self(name: &str) -> bool {
    User::from_uid(geteuid()).is_ok_and(|user| user.is_some_and(|user| user.name == name))
}

/// The user that this process runs as.
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
            Privileges::Keep => write!(f, "runs as {user} with the privileges that it was given"),
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
