//! What `cargo metadata` says of the workspace's packages, as far as it matters here.

use crate::cargo::output;
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A package of the workspace.
#[derive(Deserialize)]
pub struct Package {
    pub name: String,
    pub manifest_path: String,
    pub dependencies: Vec<Dependency>,
    pub targets: Vec<Target>,
}

/// A dependency of a package.
#[derive(Deserialize)]
pub struct Dependency {
    /// The folder, if it is a package of the workspace.
    pub path: Option<String>,
    /// Absent for ordinary dependencies, "dev" or "build" otherwise.
    pub kind: Option<String>,
}

/// Something that cargo builds of a package.
#[derive(Deserialize)]
pub struct Target {
    pub kind: Vec<String>,
    pub name: String,
}

/// The packages of the workspace.
pub fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let text = output(root, &["metadata", "--no-deps", "--format-version=1", "--offline"])?;
    let metadata: Metadata =
        serde_json::from_str(&text).map_err(|e| format!("cargo metadata: {e}"))?;
    Ok(metadata.packages)
}
