//! smbd: one share for guests, every state directory private, no NetBIOS, no printers.

use std::path::Path;

use anyhow::Result;

use crate::topology::Site;

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
pub(super) fn configuration(
    home: &Path,
    files: &Path,
    site: Site,
) -> Result<(String, Vec<String>)> {
    let state = home.join("smbd");
    let mut directories = String::new();
    for (option, name) in PRIVATE_DIRECTORIES {
        let path = state.join(name);
        std::fs::create_dir_all(&path)?;
        directories += &format!("    {option} = {}\n", path.display());
    }
    let passwords = state.join("private/passdb.tdb");
    let share = super::SMB_SHARE;
    let port = super::SMB_PORT;
    let text = format!(
        "[global]
    netbios name = TLLAB
    workgroup = LAB
    server role = standalone server
    security = user
    map to guest = Bad User
    guest account = root
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
    log level = 1
[{share}]
    path = {files}
    read only = no
    guest ok = yes
",
        passwords = passwords.display(),
        address = site.host_address(),
        address_v6 = site.host_address_v6(),
        files = files.display(),
    );
    let arguments = [
        "-F",
        "--no-process-group",
        "--debug-stdout",
        "-d1",
        "-s",
        &home.join("smbd.conf").display().to_string(),
    ]
    .map(str::to_owned)
    .to_vec();
    Ok((text, arguments))
}
