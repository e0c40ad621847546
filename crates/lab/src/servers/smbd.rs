//! smbd: one guest share, private state directories, no NetBIOS, no printers.

use std::path::Path;

use anyhow::Result;

use crate::topology::LabSite;

/// Directories that smbd would otherwise share with a Samba of the host's, by their option.
const PRIVATE_DIRECTORIES: [(&str, &str); 7] = [
    ("private dir", "private"),
    ("state directory", "state"),
    ("cache directory", "cache"),
    ("lock directory", "lock"),
    ("pid directory", "pid"),
    ("ncalrpc dir", "ncalrpc"),
    ("binddns dir", "binddns"),
];

/// The configuration and the arguments that make smbd use it.
pub fn configuration(home: &Path, files: &Path, site: LabSite) -> Result<(String, Vec<String>)> {
    let share = super::SMB_SHARE;
    let text = format!(
        "{global}    map to guest = Bad User
    guest account = root
    log level = 1
[{share}]
    path = {files}
    read only = no
    guest ok = yes
",
        global = global_section(&home.join("smbd"), site)?,
        files = files.display(),
    );
    Ok((text, arguments(&home.join("smbd.conf"))))
}

/// Settings of every smbd of the lab, as a `[global]` section that can be continued: its name,
/// `state` as its state directory, and `site`'s host as its only address.
pub fn global_section(state: &Path, site: LabSite) -> Result<String> {
    let mut directories = String::new();
    for (option, name) in PRIVATE_DIRECTORIES {
        let path = state.join(name);
        std::fs::create_dir_all(&path)?;
        directories += &format!("    {option} = {}\n", path.display());
    }
    let passwords = state.join("private/passdb.tdb");
    let port = super::SMB_PORT;
    Ok(format!(
        "[global]
    netbios name = TLLAB
    workgroup = LAB
    server role = standalone server
    security = user
    passdb backend = tdbsam:{passwords}
{directories}    usershare path =
    interfaces = lo {address}/24 {address_v6}/64
    bind interfaces only = yes
    disable netbios = yes
    smb ports = {port}
    server min protocol = NT1
    server max protocol = SMB3_11
    load printers = no
    printcap name = /dev/null
    disable spoolss = yes
    rpc start on demand helpers = yes
",
        passwords = passwords.display(),
        address = site.host_address(),
        address_v6 = site.host_address_v6(),
    ))
}

/// The arguments that keep smbd in the foreground, with this configuration.
pub fn arguments(configuration: &Path) -> Vec<String> {
    [
        "-F",
        "--no-process-group",
        "--debug-stdout",
        "-d1",
        "-s",
        &configuration.display().to_string(),
    ]
    .map(str::to_owned)
    .to_vec()
}
