#!/usr/bin/env bash
# Make the Kubernetes that tests/engines/test_kubernetes.py runs on, from Debian's source package: some eight
# minutes of CPU. usage: build_kubernetes.sh FOLDER; then MONARCH_NB_TEST_KUBERNETES=FOLDER/bin
set -euo pipefail
mkdir -p "$1"
cd "$1"
folder=$PWD
sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > sources.sources
options=(-o "Dir::Etc::SourceParts=$folder/parts" -o DPkg::Lock::Timeout=400)
mkdir -p parts
cp /etc/apt/sources.list.d/debian.sources parts/debian.sources
mv sources.sources parts/sources.sources
apt-get "${options[@]}" update -q
apt-get "${options[@]}" install -y -q --no-install-recommends \
  golang-go golang-github-modern-go-reflect2-dev rsync jq dpkg-dev make openssl etcd-server
if ! [ -d source ]; then
  apt-get "${options[@]}" source --download-only kubernetes
  dpkg-source -x kubernetes_*.dsc source
fi
# The one that comes along breaks under this version of Go.
reflect=source/vendor/github.com/modern-go/reflect2
rm -f "$reflect"/*.go "$reflect"/*.s
cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.go /usr/share/gocode/src/github.com/modern-go/reflect2/*.s "$reflect"/
rm -f "$reflect"/*_test.go
export HOME="$folder/home" GOFLAGS= GOPROXY=off KUBE_GIT_TREE_STATE=clean KUBE_GIT_VERSION=v1.20.2
export KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20 KUBE_GIT_COMMIT=0000000000000000000000000000000000000000
mkdir -p "$HOME" bin
cd source
make generated_files
for program in kube-apiserver kube-controller-manager kube-scheduler; do
  make WHAT="cmd/$program" GOLDFLAGS="-s -w"
  cp "_output/local/go/bin/$program" "$folder/bin/"
done
